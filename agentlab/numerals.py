"""The one reader of numbers in text that a model wrote: by value, and never a fragment of a longer expression.

A text is brought to one spelling (`normalized`), cut into runs of characters that belong together, and each run with a
digit is a number as a whole, a name (`x1`, `GPT-4`, `cm^2`), or unreadable. Nothing is guessed: where two readings
are possible there is no number. A LaTeX command that is not known to be harmless makes what it touches unreadable, and
a model's reasoning is not read at all.
"""

import html
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

MAX_DIGITS = 1000
"""Digits of a number, and its largest exponent; a longer one is unreadable."""

MINUS_SIGNS = "-‐‑‒–−﹣－⁻➖˗"
TIMES_SIGNS = "×⋅·∙✕✖＊∗"
SLASHES = "⁄∕／"
SPACES = "\t\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
SPELLINGS = str.maketrans(
    dict.fromkeys(MINUS_SIGNS + "负負", "-")
    | dict.fromkeys(SPACES + "—―", " ")
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
    | dict.fromkeys(TIMES_SIGNS, "*")
    | dict.fromkeys(SLASHES, "/")
    | dict.fromkeys("\u2018\u2019\u02bc", "'")
    | dict.fromkeys("。、【】「」『』《》", " ")
    | dict(zip("；：！？（），．٫٬＋＝％", ";:!?(),..,+=%", strict=True))
    | dict.fromkeys("“”„«»‹›", '"')
    | dict.fromkeys("→⇒⟹⟶➔➜", "=")
    | dict.fromkeys("≤≥≮≯≰≱≪≫≢∈∉", "≠")
    | dict.fromkeys("√∛∜π∑∏∫∞⌊⌋⌈⌉", "\0")
    | {"➕": "+", "➗": "÷", "℃": "°C", "℉": "°F", "\ufe0e": "", "\ufe0f": "", "\u20e3": ""}
)
"""What is written in several ways, in one. What makes a number part of an expression is NUL (`OPAQUE`); what says that
a number is not the value is ≠."""
OPAQUE = "\0"
MIXED, SCALED = "\1", "\2"
"""Stand between a whole number and its fraction (1 3/4), and between a number and its word (3 million)."""

GROUPED = r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+|(?:_\d{3})+|(?:'\d{3})+)(?!\d)|\d+)"
LITERAL = rf"(?:{GROUPED}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
"""Digits, perhaps grouped, with a fraction and an exponent; no sign."""
SEPARATORS = str.maketrans("", "", " ,_'")
SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
LENGTH = "[nµμucdkm]?m|mi|ft|yd|in|units?|inch(?:es)?|feet|foot|yards?|miles?|(?:kilo|centi|milli)?met(?:er|re)s?"
UNITS = (
    "ha|ml|mL|cl|dl|l|L|mg|kg|lbs?|oz|g|ns|µs|μs|us|ms|secs?|s|mins?|hrs?|h|kHz|MHz|GHz|Hz|kPa|Pa|kN|kJ|kcal|cal|"
    "kWh|kW|W|mV|kV|V|mA|mol|eV|rad|deg|px|mph|kmh|kph|KB|kB|MB|GB|TB|EUR|USD|GBP|seconds?|minutes?|hours?|days?|weeks?|months?|years?|percent|person|meters?|metres?|dollars?|cents?"
)
UNIT = rf"(?:(?:{LENGTH})(?:\^?[23])?|{UNITS})(?:[*/](?:(?:{LENGTH})(?:\^?[23])?|s\^2|{UNITS}))*"
"""What may follow a number without a space; the letters alone could be a factor."""
NUMBER = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<integer>{GROUPED}){MIXED})?(?:(?P<base>10)\^(?P<exponent>[-+]?\d+)|(?P<top>{LITERAL})"
    rf"(?:/(?P<bottom>[-+]?{LITERAL})|\*10\^(?P<power>[-+]?\d+)|{SCALED}(?P<scale>[a-zA-Z]+))?)"
    rf"(?:%|°[CF]?|/?{UNIT})?"
)
NAME = re.compile(rf"(?![a-z]-)[^\W\d][\w.-]*|{UNIT}")
RUN = re.compile(r"[^\s=≈|;?\"`{}…&]+")
BEFORE, AFTER = "([#~:,!*'", ")].,:!*'~"
"""What may stand around a number without being part of it."""

REASONING = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>|\[(/?)THINK\]|◁(/?)think▷", re.IGNORECASE)
"""Where a model's reasoning begins and ends."""
ANNOTATION = re.compile(r"<<[^<>\n]{0,200}>>(?:([\d.,]{1,30})>>(?=\1))?(?P<shown>[ $€£*=]{0,8}[-+]?[ $€£]?\.?\d)?")
"""What GSM8K's solutions say to a calculator, before its result."""
KEYCAPS = re.compile(r"(?:\d\ufe0f?\u20e3)++(?=\d)")

FONTS = (
    r"text(?:bf|it|rm|tt|sf|sc|sl|md|up|normal|style)?|math[a-z]+|boxed|[fhm]box|framebox|makebox|underline|emph|bold|"
    r"boldsymbol|bm|pmb|ensuremath|displaystyle|scriptstyle|bf|it|rm|tt|sf|sc|sl|em|bfseries|itshape|rmfamily|large|"
    r"Large|LARGE|huge|Huge|small|tiny|normalsize|footnotesize|scriptsize|SI|qty|num"
)
UNIT_COMMANDS = (
    r"si|unit|(?:kilo|centi|milli|micro|square|cubic|per|squared|cubed|meter|metre|gram|second|minute|hour|liter|litre|"
    r"newton|joule|watt|volt|ampere|pascal|hertz|mole|kelvin)(?:meter|metre|gram|second)?|euro|pounds|yen|textdollar|"
    r"texteuro|textsterling"
)
HARMLESS = rf"""\\(?:{FONTS}|{UNIT_COMMANDS}|[bB]igg?[lrm]?|left|right|middle|enspace|thinspace|medspace|thickspace|
    negthinspace|hfill|noindent|newline|par|centering|hline|item|limits|nolimits|nobreak|allowbreak|strut|relax|[dl]?dots|
    checkmark|square|blacksquare|Box|qed|star|bigstar|bullet|protect|selectfont|n)(?![a-zA-Z])"""
"""LaTeX that changes how a thing looks, not its value. Any other command has a value of its own."""
HARMLESS = re.sub(r"\s", "", HARMLESS)
WRAPPED = re.compile(rf"\\(?:{FONTS})\s*(?:\[[^\[\]{{}}]*\]\s*)*\{{([^{{}}]*)\}}(\(?)")
SCRIPTED = re.compile(
    rf"(?!{HARMLESS})\\(?!circ|degree)[a-zA-Z]+(?:\s*[_^]\s*(?:\{{[^{{}}]*\}}|[^\s{{}}\\]|\\(?!circ)[a-zA-Z]+))+"
)
COMMANDS = [
    (re.compile(r"\\\\"), "\n"),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\[,;: ()\[\]]|\\q?quad\b|~(?=\\)|(?<=\d)~(?=\d{3}(?!\d))"), " "),
    (
        re.compile(r"\\(?:text|page)?color\s*\{[^{}]*\}|\\colorbox\s*\{[^{}]*\}|\\fcolorbox\s*\{[^{}]*\}\s*\{[^{}]*\}"),
        " ",
    ),
    (re.compile(r"\\(?:[hv]space|[hv]?phantom|tag|label|(?:eq)?ref|cite|fontsize)\*?\s*\{[^{}]*\}"), " "),
    (re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)\s*(?:\\?\||\.)|\\\|"), OPAQUE),
    (
        re.compile(
            r"\\not(?:\s*=|\s*\\[a-zA-Z]+)|\\(?:neq?|[lg](?:e|eq|eqq|eqslant|t)|ll|gg|n[lg]eq|(?:not)?in)(?![a-zA-Z])"
        ),
        "≠",
    ),
    (re.compile(r"\\([$%{}#&_])"), r"\1"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|\\(?:text)?degree(?![a-zA-Z])|º"), "°"),
    (re.compile(r"\\(?:degreeCelsius|celsius|textcelsius)(?![a-zA-Z])"), "°C"),
    (SCRIPTED, OPAQUE),
    (re.compile(r"\^\s*\{\s*([-+]?)\s*(\d+)\s*\}"), r"^\1\2"),
    (re.compile(r"_\s*\{([^{}\s]*)\}"), r"_\1"),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "÷"),
    (re.compile(r"\\pm(?![a-z])|\\mp(?![a-z])"), "±"),
    (
        re.compile(
            r"\\(?:approx|simeq|sim|cong|doteq|mapsto|to|(?:[lL]ong)?[rR]ightarrow|implies|iff|equiv|therefore|because|begin|end)"
            r"(?![a-zA-Z])"
        ),
        "=",
    ),
]
"""LaTeX for what plain text can say, too."""
FRACTIONS = r"\\(?:[dtcs]|nice)?frac(?![a-zA-Z])"
FRACTION = re.compile(
    rf"(?P<before>\d ?)?{FRACTIONS}\s*(?:\{{([^{{}}]*)\}}|(\d))\s*(?:\{{([^{{}}]*)\}}|(\d))(?P<after>\d)?"
)
WITH_ARGUMENTS = re.compile(rf"(?!{HARMLESS}|{FRACTIONS})\\[a-zA-Z]+\*?(?:\s*(?:\[[^\[\]{{}}]*\]|\{{[^{{}}]*\}}))+")
MAX_DEPTH = 10
"""LaTeX commands inside each other; deeper ones make their line unreadable."""

MARKS = [
    (re.compile(r"<[/|]?[A-Za-z][^<>\n]{0,100}>|(?<![-=])[-=]++>|^[ \t]*>", re.MULTILINE), " "),
    (re.compile(r"^[ \t]*[-–][ \t]+(?=[$€£]?\.?\d)", re.MULTILINE), OPAQUE),
    (re.compile(r"^[ \t]*[-–*+•][ \t]+", re.MULTILINE), ""),
    (re.compile(r"(?<![\w*)])(\*{1,3})(?=[^\s*])([^*\n]*[^\s*])\1(?![\w*(])"), r"\2"),
    (re.compile(r"(?<!\w)(_{1,2})(?=[^\s_])([^_\n]*[^\s_])\1(?!\w)"), r"\2"),
]
"""Tags, arrows, and what Markdown has. A dash that may be a bullet or a minus is neither."""
WORDS = (
    r"minus|plus|times|multiplied by|divided by|over|modulo|point|choose|out of|to the power(?: of)?|to the|"
    r"raised to(?: the(?: power(?: of)?)?)?"
)
"""Operators in words, and what else makes one number of two."""
FUNCTIONS = (
    r"sqrt|cbrt|log|lg|ln|exp|(?:arc|a)?(?:sin|cos|tan|cot|sec|csc)h?|abs|floor|ceil|round|max|min|gcd|lcm|det|"
    r"twice|double|triple"
)
OTHER_SCALES = (
    r"(?:(?:hundred|thousand|million|billion|trillion|dozen)(?:s|ths?)|(?:quadr|quint|sext|sept|oct|non|dec)illions?|"
    r"lakhs?|crores?|bn|mn|tn|mio|mrd|tenths?|thirds|fifths|sixths|sevenths|eighths|ninths)"
)
"""Words that change the value of the number before them, and are not read."""
UNSPACED = r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
"""Letters of the scripts that put no space between a number and its word."""
UNSPACED_SCALES = (
    r"[\u3400-\u9fff\uac00-\ud7af]?半|[万萬億亿兆百十拾佰仟割折억천백십]|千(?![克米瓦卡])|成(?!员)|만(?!큼)|조(?!각)|번째|番目|つ目|"
    r"ล้าน|แสน|หมื่น|พัน|ร้อย"
)
UNSPACED_WORDS = (
    r"加上?|[减減]去?|乘以?|除以|[点點]|[比到至]|分之|[年月时時分]|足す|引く|かける|割る|더하기|빼기|곱하기|나누기"
)
TERM = r"(?=[\d(.\0]|[a-zA-Z](?![a-zA-Z]))"
"""What a sign may stand before in an expression; before a word it is a dash."""
JOINS = [
    (re.compile(r"(?:[<>≠]|[!/](?==))=* *"), OPAQUE),
    (re.compile(r"\|-\.?\d[^|\s]{0,30}\||(?<=\$)\|[^|$\n]{1,60}\|(?=\$)"), OPAQUE),
    (re.compile(rf"(?<![\d.,])(?:(?<=[=(])|(?<=[=(] )|^) *{LITERAL}!(?!\d)", re.MULTILINE), OPAQUE),
    (re.compile(r"(?<=\d)!(?= ?[$).,;}\]+*/^=-])"), OPAQUE),
    (re.compile(r"\^ *\( *([-+]?\d+) *\)"), r"^\1"),
    (re.compile(r"\.{2,}+(?!\d)|(?<![\d.])\.{2,}|(?<![\d-])--+|-{2,}+(?!\d)"), " "),
    (re.compile(r"(?<=[-+])[$€£¥₹₩₽¢] ?"), ""),
    (re.compile(r"[$€£¥₹₩₽¢]"), " "),
    (re.compile(rf"(?<=[\w)%°]) +(?:{WORDS}) +(?=[-+]?\.?\d)", re.IGNORECASE), OPAQUE),
    (re.compile(r"(?<=\d) +and +(?:(?:an?|one|two|three) +(?:half|third|quarter|fifth|tenth)|(?=\d+/\d))"), OPAQUE),
    (re.compile(r"(?<=\d) +(?:squared|cubed|factorial|st|nd|rd|th)\b", re.IGNORECASE), OPAQUE),
    (re.compile(r" {0,2}\(? ?\bmod(?:ulo)? +(?=-?\d)", re.IGNORECASE), OPAQUE),
    (re.compile(r"\b(?:minus|negative) +(?=\.?\d)", re.IGNORECASE), "-"),
    (re.compile(rf"(?<=\d) ?(?:{UNSPACED_SCALES})"), OPAQUE),
    (re.compile(rf"(?<=\d) ?(?:{UNSPACED_WORDS}|[{UNSPACED}]) ?(?=[-+]?\d)"), OPAQUE),
    (re.compile(rf"(?<=\d) ?[{UNSPACED}]{{1,8}}(?:{UNSPACED_WORDS}) ?(?=[-+]?\d)"), OPAQUE),
    (re.compile(rf"(?<=[{UNSPACED}])(?=[-+*]*\d)|(?<=\d)(?=[{UNSPACED}])"), " "),
    (re.compile(r"(?<=\d) *x *(?=\.?\d)"), "*"),
    (re.compile(r"(?<=[a-z°%]) +[x*] *(?=\d)"), OPAQUE),
    (re.compile(rf"(?<=\d) +(?=(?:{'|'.join(SCALES)})\b)", re.IGNORECASE), SCALED),
    (re.compile(rf"(?<={SCALED})({'|'.join(SCALES)}),? +(?:and +)?(?=\d)", re.IGNORECASE), rf"\1{OPAQUE}"),
    (re.compile(rf"(?<={SCALED})({'|'.join(SCALES)}) +(?=(?:{'|'.join(SCALES)})\b)", re.IGNORECASE), rf"\1{OPAQUE}"),
    (re.compile(rf"(?<=\d) +(?={OTHER_SCALES}\b)", re.IGNORECASE), OPAQUE),
    (re.compile(rf"(?<=\d) +(?=(?:[xyzn]|pi|{FUNCTIONS})(?![a-zA-Z])|\0)"), OPAQUE),
    (re.compile(rf"(?<![a-zA-Z])(?:{FUNCTIONS})(?:_\w+)? *(?=[-+]?\.?\d)"), OPAQUE),
    (
        re.compile(r"\b(?:roots?|half|third|quarter|factorial|logarithm|logs?|percent) of +(?=\.?\d)|% +of +(?=\.?\d)"),
        OPAQUE,
    ),
    (re.compile(r"(?<=\0) +(?=[-+]?\.?\d)"), ""),
    (re.compile(r"(?<=[\w)\]%!°\0]) *([*/^÷±]+) *(?=[\w(\[.\0-])"), r"\1"),
    (re.compile(rf"(?<=[\d\0]) *([-+]) *{TERM}"), r"\1"),
    (re.compile(rf"(?<=\d[)\]%!°]) +([-+]) +{TERM}"), r"\1"),
    (re.compile(r"((?:^|[=(≈<>]) *[-+]) +(?=\.?\d)", re.MULTILINE), r"\1"),
    (re.compile(r"(?<!\S)[-+±*/^÷] +(?=\.?\d)"), OPAQUE),
    (re.compile(r"(?<![\w.,/\1])(\d+) (?=\d+/\d)"), rf"\1{MIXED}"),
    (re.compile(r"[,:](?!\d)|(?<!\d)[,:]|'(?!\d)|(?<!\d)['!]"), " "),
]
"""Spaces that separate nothing go, separators that are written without a space get one."""
SPACED = re.compile(
    r"(?P<label>\b(?:pages?|pp?\.|steps?|chapters?|sections?|questions?|problems?|exercises?|examples?|figures?|fig\.|tables?|"
    r"parts?|items?|cases?|lines?|numbers?|no\.|nos\.|options?|days?|weeks?|months?|years?|rounds?|levels?|equations?|eq\.|"
    r"rows?|columns?|versions?|rooms?|grades?) )?(?<![\w.,])\d+(?:,\d+)*(?: \d+)+(?![\d/])",
    re.IGNORECASE,
)
"""Numbers with a space between them. After a word that numbers things they are two numbers, or one: neither is read."""
CALL = re.compile(r"(?<=[^\W_])\([^()\n]*\)")
WITH_COMMAS = re.compile(r"\d+(?:,\d+){2,}")


class Numeral(NamedTuple):
    """What a text has in the place of a number."""

    value: Fraction | None
    """None where it cannot be read, or only in part."""
    plain: bool
    """Whether it is written as a whole number: no point, fraction or exponent."""


def numerals(text: str) -> list[Numeral]:
    """What in a text is a number or could be one, in order. Names with digits in them are left out."""
    return [read for run in _runs(text) for read in _read(run)]


def last_number(text: str) -> Fraction | None:
    """The last number of a text; None if there is none, or if what stands last cannot be read as one."""
    return _last(text).value


def last_integer(text: str) -> int | None:
    """The last number of a text, if it is written as a whole number; else None."""
    last = _last(text)
    return int(last.value) if last.plain and last.value is not None else None


def only_number(text: str) -> Fraction | None:
    """The number that a text consists of, perhaps with a unit or a currency's sign; None if it is none."""
    first, *rest = list(_runs(text)) or [""]
    runs = [first, *(run for run in rest if not re.fullmatch(f"[{UNSPACED}]{{1,3}}", run))]
    read = _read(runs[0]) if len(runs) == 1 else []
    return read[0].value if len(read) == 1 else None


def literal_value(text: str) -> Fraction:
    """The exact value of a `LITERAL`.

    Raises:
        OverflowError: its exponent is beyond what is read.
    """
    plain = Decimal(text.translate(SEPARATORS))
    if plain and abs(plain.adjusted()) > MAX_DIGITS:
        raise OverflowError(f"The exponent of {text:.40} is beyond {MAX_DIGITS}.")
    return Fraction(plain)


def _last(text: str) -> Numeral:
    for run in reversed(list(_runs(text))):
        if read := _read(run):
            return read[-1]
    return Numeral(None, False)


def normalized(text: str) -> str:
    """A text with numbers, operators and spaces in one spelling, without LaTeX, and with expressions unspaced."""
    text = without_reasoning(html.unescape(text) if "&" in text else text)
    if "<<" in text:
        text = ANNOTATION.sub(lambda annotation: annotation["shown"] or OPAQUE, text)
    if not text.isascii():
        text = KEYCAPS.sub(OPAQUE, text)
        text = re.sub(rf"(?<=[{UNSPACED}])(?=\*)|(?<=\*)(?=[{UNSPACED}])", " ", text)
    for pattern, instead in MARKS:
        text = pattern.sub(instead, text)
    text = _ascii_digits(text).translate(SPELLINGS)
    if not text.isascii():
        text = re.sub(r"[^\x00-\x7f°]", _without_pictures, text)
    if "\\" in text or "{" in text:
        text = _without_latex(text)
    text = CALL.sub(lambda call: re.sub(r"\s", "", call[0]), text)
    for pattern, instead in JOINS:
        text = pattern.sub(instead, text)
    return SPACED.sub(_grouped, text)


def without_reasoning(text: str) -> str:
    """A text without what stands in <think>…</think> and its like, or after such a tag that is not closed.

    Where a tag is closed that was not opened, as in completions of prompts that open it, all before it is reasoning.
    """
    kept: list[str] = []
    begin, reasons = 0, False
    for tag in REASONING.finditer(text):
        if any(tag.groups()):
            if not reasons:
                kept.clear()
            begin, reasons = tag.end(), False
        elif not reasons:
            kept.append(text[begin : tag.start()])
            reasons = True
    return "\n".join(kept if reasons else [*kept, text[begin:]])


def _without_pictures(match: re.Match[str]) -> str:
    """Emoji and their like are spaces."""
    return " " if unicodedata.category(match[0]) in ("So", "Sk") else match[0]


def _runs(text: str) -> Iterator[str]:
    for match in RUN.finditer(normalized(text)):
        run = match[0].lstrip(BEFORE).rstrip(AFTER)
        if run:
            yield run


def _read(run: str) -> list[Numeral]:
    """The numerals of a run: none if it is a word or a name, several if it is a list without spaces."""
    if OPAQUE not in run and (not re.search(r"\d", run) or NAME.fullmatch(run)):
        return []
    if WITH_COMMAS.fullmatch(run) and not any(len(part) == 3 for part in run.split(",")[1:]):
        return [Numeral(Fraction(part), True) for part in run.split(",")]
    match = NUMBER.fullmatch(run) if len(run) <= MAX_DIGITS else None
    return [Numeral(_value(match) if match else None, bool(re.fullmatch(rf"[-+]?{GROUPED}\D*", run)))]


def _value(match: re.Match[str]) -> Fraction | None:
    try:
        value = literal_value("1e" + match["exponent"] if match["base"] else match["top"])
        if match["bottom"]:
            value /= literal_value(match["bottom"])
        value *= literal_value("1e" + (match["power"] or "0")) * SCALES.get((match["scale"] or "").lower(), 1)
        integer = literal_value(match["integer"] or "0")
    except (ZeroDivisionError, OverflowError):
        return None
    if match["integer"] and (not match["bottom"] or not 0 <= value < 1):
        return None
    return (integer + value) * (-1 if match["sign"] == "-" else 1)


def _ascii_digits(text: str) -> str:
    """All scripts' digits as 0 to 9, superscripts as powers, subscripts as parts of names, ½ as 1/2."""
    if text.isascii():
        return text
    text = re.sub(r"[⁰¹²³⁴-⁹⁺⁻]*[⁰¹²³⁴-⁹]", lambda raised: "^" + unicodedata.normalize("NFKC", raised[0]), text)
    text = re.sub(r"[₀-₉]+", lambda lowered: "_" + unicodedata.normalize("NFKC", lowered[0]), text)
    text = re.sub(r"(\d ?)?([¼-¾⅐-⅞])", lambda part: _mixed(part[1], unicodedata.normalize("NFKC", part[2])), text)
    return re.sub(r"[^\W\D\x00-\x7f]", lambda digit: str(unicodedata.digit(digit[0])), text)


def _mixed(before: str | None, fraction: str) -> str:
    return f"{before.rstrip()}{MIXED}{fraction}" if before else fraction


def _without_latex(text: str) -> str:
    for pattern, instead in COMMANDS:
        text = pattern.sub(instead, text)
    for _ in range(MAX_DEPTH):
        before = text
        text = WRAPPED.sub(lambda wrapped: f" {wrapped[1]}{wrapped[2] or ' '}", text)
        text = FRACTION.sub(_fraction, text)
        text = WITH_ARGUMENTS.sub(OPAQUE, text)
        if text == before:
            break
    text = re.sub(rf"{FRACTIONS}.*", OPAQUE, text)
    text = re.sub(HARMLESS, " ", text)
    return re.sub(r"[{}]", " ", re.sub(r"\\[a-zA-Z]+", OPAQUE, text))


def _fraction(match: re.Match[str]) -> str:
    top, bottom = (match[2] or match[3] or "").strip(), (match[4] or match[5] or "").strip()
    signed = rf"[-+]?{LITERAL}"
    if match["after"] or not re.fullmatch(signed, top) or not re.fullmatch(signed, bottom):
        return f"{match['before'] or ''}{OPAQUE}{match['after'] or ''}"
    return _mixed(match["before"], f"{top}/{bottom}")


def _grouped(match: re.Match[str]) -> str:
    """Numbers with a space between them: digits in groups of three are one, and what could be either is neither."""
    label = match["label"] or ""
    first, *rest = match[0][len(label) :].split(" ")
    if all(len(part) != 3 for part in rest):
        return match[0]
    grouped = (
        not label and first.isdecimal() and len(first) <= 3 and first[0] != "0" and all(len(part) == 3 for part in rest)
    )
    return label + ("_" if grouped else OPAQUE).join((first, *rest))
