"""The one reader of numbers in text that a model wrote: by value, and never a fragment of a longer expression.

A text is brought to one spelling (`normalized`), cut into runs of characters that belong together, and each run with a
digit is a number as a whole, a name (`x1`, `GPT-4`, `cm^2`), or unreadable. Nothing is guessed: where two readings
are possible there is no number.
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
TIMES_SIGNS = "×⋅·∙✕✖＊"
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
    | dict.fromkeys("≠≤≥√∛π", "\0")
)
"""What is written in several ways, in one; what makes a number part of an expression is NUL (`OPAQUE`)."""
OPAQUE = "\0"
MIXED, SCALED = "\1", "\2"
"""Stand between a whole number and its fraction (1 3/4), and between a number and its word (3 million)."""

GROUPED = r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?: \d{3})+|(?:_\d{3})+|(?:'\d{3})+)(?!\d)|\d+)"
LITERAL = rf"(?:{GROUPED}(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
"""Digits, perhaps grouped, with a fraction and an exponent; no sign."""
SEPARATORS = str.maketrans("", "", " ,_'")
SCALES = {"dozen": 12, "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
LENGTH = "[nµμucdkm]?m|mi|ft|yd|in"
UNITS = (
    "ha|ml|mL|cl|dl|l|L|mg|kg|lbs?|oz|g|ns|µs|μs|us|ms|secs?|s|mins?|hrs?|h|kHz|MHz|GHz|Hz|kPa|Pa|kN|kJ|kcal|cal|"
    "kWh|kW|W|mV|kV|V|mA|mol|eV|rad|deg|px|mph|kmh|kph|KB|kB|MB|GB|TB|EUR|USD|GBP|seconds?|minutes?|hours?|days?|weeks?|months?|years?|percent|person|meters?|metres?|dollars?|cents?"
)
UNIT = rf"(?:(?:{LENGTH})(?:\^?[23])?|{UNITS})(?:[*/](?:(?:{LENGTH})(?:\^?[23])?|s\^2|{UNITS}))*"
"""What may follow a number without a space; the letters alone could be a factor."""
NUMBER = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<integer>{GROUPED}){MIXED})?(?:(?P<base>10)\^(?P<exponent>[-+]?\d+)|(?P<top>{LITERAL})"
    rf"(?:/(?P<bottom>[-+]?{LITERAL})|\*10\^(?P<power>[-+]?\d+)|{SCALED}(?P<scale>[a-z]+))?)"
    rf"(?:%|°[CF]?|/?{UNIT})?"
)
NAME = re.compile(rf"(?![a-z]-)[^\W\d][\w.-]*|{UNIT}")
RUN = re.compile(r"[^\s=≈|;?\"`{}…&]+")
BEFORE, AFTER = "([#~:,!*'", ")].,:!*'~"
"""What may stand around a number without being part of it."""

WRAPPERS = re.compile(
    r"\\(?:boxed|fbox|mbox|text[a-z]*|math[a-z]+|operatorname|underline|displaystyle|ensuremath|left|right|[bB]igg?[lr]?)"
    r"(?![a-zA-Z])"
)
COMMANDS = [
    (re.compile(r"\\\\"), "\n"),
    (re.compile(r"\\!"), ""),
    (re.compile(r"\\[,;: ()\[\]]|\\q?quad\b|~(?=\\)"), " "),
    (re.compile(r"\\([$%{}#&_])"), r"\1"),
    (WRAPPERS, " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ\b)|\\degree\b|º"), "°"),
    (re.compile(r"\^\s*\{\s*([-+]?)\s*(\d+)\s*\}"), r"^\1\2"),
    (re.compile(r"_\s*\{([^{}\s]*)\}"), r"_\1"),
    (re.compile(r"\\(?:times|cdot|ast)(?![a-z])"), "*"),
    (re.compile(r"\\pm(?![a-z])|\\mp(?![a-z])"), "±"),
    (
        re.compile(r"\\(?:approx|to|[rR]ightarrow|implies|iff|equiv|therefore|begin|end)(?![a-zA-Z])"),
        "=",
    ),
]
"""LaTeX for what plain text can say, too."""
FRACTION = re.compile(r"(?P<before>\d ?)?\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))(?P<after>\d)?")
WITH_ARGUMENTS = re.compile(r"\\(?![dtc]?frac)([a-zA-Z]+)(?:\s*(?:\[[^\[\]{}]*\]|\{[^{}]*\}))+")
OPERANDS = re.compile(
    r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|phi|pi|rho|sigma|tau|omega|infty|sqrt|log|ln|exp|sin|cos|tan|neq?|"
    r"leq?|geq?|lt|gt|binom|sum|prod|int|lim|div|e)(?![a-zA-Z])"
)
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
TERM = r"(?=[\d(.\0]|[a-zA-Z](?![a-zA-Z]))"
"""What a sign may stand before in an expression; before a word it is a dash."""
JOINS = [
    (re.compile(r"[<>]"), OPAQUE),
    (re.compile(r"\0= *"), OPAQUE),
    (re.compile(r"\^ *\( *([-+]?\d+) *\)"), r"^\1"),
    (re.compile(r"\.{2,}+(?!\d)|(?<![\d.])\.{2,}|(?<![\d-])--+|-{2,}+(?!\d)"), " "),
    (re.compile(r"(?<=[-+])[$€£¥₹₩₽¢] ?"), ""),
    (re.compile(r"[$€£¥₹₩₽¢]"), " "),
    (re.compile(r"(?<=\d) +(?:minus|plus) +(?=\.?\d)"), OPAQUE),
    (re.compile(r"\b(?:minus|negative) +(?=\.?\d)", re.IGNORECASE), "-"),
    (re.compile(r"(?<=[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])(?=[-+]?\d)"), " "),
    (re.compile(r"(?<=\d) *x *(?=\.?\d)"), "*"),
    (re.compile(r"(?<=[a-z°%]) +[x*] *(?=\d)"), OPAQUE),
    (re.compile(rf"(?<=\d) (?=(?:{'|'.join(SCALES)})\b)"), SCALED),
    (re.compile(r"(?<=\d) +(?=(?:[xyzn]|pi|sqrt|log|ln|sin|cos|tan)(?![a-zA-Z])|\0)"), OPAQUE),
    (re.compile(r"(?<![a-zA-Z])(?:sqrt|log|ln|sin|cos|tan|exp) *(?=[-+]?\.?\d)"), OPAQUE),
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
SPACED = re.compile(r"(?<![\w.,])\d+(?:,\d+)*(?: \d+)+(?![\d/])")
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
    runs = list(_runs(text))
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
    text = html.unescape(text) if "&" in text else text
    for pattern, instead in MARKS:
        text = pattern.sub(instead, text)
    text = _ascii_digits(text).translate(SPELLINGS)
    if "\\" in text or "{" in text:
        text = _without_latex(text)
    text = CALL.sub(lambda call: re.sub(r"\s", "", call[0]), text)
    for pattern, instead in JOINS:
        text = pattern.sub(instead, text)
    return SPACED.sub(_grouped, text)


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
        value *= literal_value("1e" + (match["power"] or "0")) * SCALES.get(match["scale"] or "", 1)
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
        text = FRACTION.sub(_fraction, text)
        text = WITH_ARGUMENTS.sub(lambda command: OPAQUE if re.search(r"[\d\0]", command[0]) else " ", text)
        if text == before:
            break
    text = re.sub(r"\\[dtc]?frac.*", OPAQUE, text)
    text = OPERANDS.sub(OPAQUE, text)
    return re.sub(r"\\[a-zA-Z]+|[{}]", " ", text)


def _fraction(match: re.Match[str]) -> str:
    top, bottom = (match[2] or match[3] or "").strip(), (match[4] or match[5] or "").strip()
    signed = rf"[-+]?{LITERAL}"
    if match["after"] or not re.fullmatch(signed, top) or not re.fullmatch(signed, bottom):
        return f"{match['before'] or ''}{OPAQUE}{match['after'] or ''}"
    return _mixed(match["before"], f"{top}/{bottom}")


def _grouped(match: re.Match[str]) -> str:
    """Numbers with a space between them: digits in groups of three are one, and what could be either is neither."""
    first, *rest = match[0].split(" ")
    if all(len(part) != 3 for part in rest):
        return match[0]
    grouped = first.isdecimal() and len(first) <= 3 and first[0] != "0" and all(len(part) == 3 for part in rest)
    return ("_" if grouped else OPAQUE).join((first, *rest))
