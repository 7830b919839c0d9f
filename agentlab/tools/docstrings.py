"""What docstrings say of a function and of its arguments: Google's style, NumPy's, reST and Epytext."""

import inspect
import re

SECTION = re.compile(
    r"^(?:(?:Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters):[ \t]*$"
    r"|(?:Parameters|Other Parameters|Keyword Arguments)[ \t]*\n[ \t]*-{3,}[ \t]*$"
    r"|[:@](?:param|parameter|arg|argument|key|keyword|type)\b)",
    re.MULTILINE,
)
KEYWORD_HEAD = re.compile(r"^Keyword (?:Args|Arguments):", re.MULTILINE)
TYPED_FIELD = re.compile(r"^(:(?:param|parameter|arg|argument|key|keyword))\s[^:\n]*?(\*{0,2}\w+)\s*:", re.MULTILINE)


def description_of(docstring: str) -> str:
    """A docstring without what it says of the arguments, and without what follows that."""
    text = inspect.cleandoc(docstring)
    section = SECTION.search(text)
    return text[: section.start()].strip() if section else text.strip()


def argument_descriptions(docstring: str) -> dict[str, str]:
    """What a docstring says about each parameter, without its type."""
    text = inspect.cleandoc(docstring)
    section = SECTION.search(text)
    if section is None:
        return {}
    import docstring_parser

    # The parser wants a summary first, and knows neither "Keyword Args:" nor types of several words.
    rest = KEYWORD_HEAD.sub("Args:", TYPED_FIELD.sub(r"\1 \2:", text[section.start() :]))
    try:
        parsed = docstring_parser.parse(f"Summary.\n\n{rest}")
    except docstring_parser.ParseError:
        return {}  # malformed: no description is better than a part of one
    return {
        name.strip().lstrip("*"): " ".join(part.description.split())
        for part in parsed.params
        if part.description
        for name in part.arg_name.split(",")
    }
