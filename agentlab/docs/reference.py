"""Makes the reference of the public names from their docstrings."""

import ast
import functools
import importlib
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(__file__).parent
REFERENCE = FOLDER / "reference.md"
SECTION = re.compile(r"(Args|Returns|Raises|Yields):")
ITEM = re.compile(r" {4}(\*{0,2}\w+(?:, \w+)*): (.*)")

HEAD = """\
# Reference

Every public name, made from the docstrings by `python -m agentlab.docs`. Do not edit this page: edit the docstring.
`al` stands for `import agentlab as al`.
"""


def reference() -> str:
    """The page: names of `agentlab` in full, those of its rooms with a sentence each."""
    package = importlib.import_module("agentlab")
    names = {name: getattr(package, name) for name in package.__all__}
    rooms = sorted(name for name, value in names.items() if isinstance(value, ModuleType))
    parts = [
        HEAD,
        *(
            f"{title}: {links(listed)}.\n"
            for title, listed in (("Names", [name for name in names if name not in rooms]), ("Rooms", rooms))
        ),
    ]
    parts += [described(f"al.{name}", value) for name, value in names.items() if not isinstance(value, ModuleType)]
    parts += [room(f"al.{name}", names[name]) for name in rooms]
    return "\n".join(parts).rstrip() + "\n"


def links(names: list[str]) -> str:
    """Links to the sections of these names on this page."""
    return ", ".join(f"[{name}](#al{name.lower()})" for name in names)


def described(name: str, value: Any) -> str:
    """One name in full: how it is called, its docstring, its options or fields, its methods."""
    parts = [f"## `{name}`\n", f"```python\n{name}{called(value)}\n```\n", as_markdown(inspect.getdoc(value) or "")]
    if inspect.isclass(value) and is_dataclass(value):
        parts += ["\n**Fields**\n", "| name | default | |", "| --- | --- | --- |", *field_rows(value)]
    if inspect.isclass(value) and (listed := list(methods(value))):
        parts += ["\n**Methods and properties**\n", *listed]
    return "\n".join(parts) + "\n"


def room(name: str, module: ModuleType) -> str:
    """A room: its docstring, and a sentence for each of its names."""
    public = getattr(module, "__all__", None) or defined_in(module)
    lines = [f"## `{name}`\n", as_markdown(inspect.getdoc(module) or ""), ""]
    for item in sorted(public):
        value = getattr(module, item)
        call = one_line(value) if callable(value) and not is_value(value) else ""
        lines.append(f"- `{name}.{item}{call}`{after(sentence(value, module, item))}")
    return "\n".join(lines) + "\n"


def defined_in(module: ModuleType) -> list[str]:
    """Public functions and classes that a module without `__all__` defines."""
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    return [name for name, value in own.items() if not name.startswith("_") and (callable(value))]


def is_value(value: Any) -> bool:
    """Whether it is a made thing rather than a function or a class."""
    return not (inspect.isroutine(value) or inspect.isclass(value))


def called(value: Any) -> str:
    """The arguments with their defaults, without types, the same under every version of Python."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=p.empty, default=Shown.of(p.default)) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return text if len(text) <= 100 else "(\n" + textwrap.indent(",\n".join(_split(bare)), "    ") + ",\n)"


def _split(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        yield str(parameter)


class Shown:
    """A default value as it is written."""

    def __init__(self, value: Any) -> None:
        self.value = value

    @classmethod
    def of(cls, value: Any) -> Any:
        return value if value is inspect.Parameter.empty else cls(value)

    def __repr__(self) -> str:
        return shown(self.value)


def shown(value: Any) -> str:
    """A value in a short form that does not differ from run to run."""
    if name := getattr(value, "__qualname__", None) or getattr(value, "name", None):
        return str(name)
    text = repr(value)
    return "…" if " at 0x" in text or "factory" in text or len(text) > 60 else text


def field_rows(cls: type) -> Iterator[str]:
    """A row per field: name, default and what is said of it in the source."""
    said = {name: text for base in reversed(cls.__mro__) for name, text in field_docs(base).items()}
    for field in fields(cls):
        default = "" if field.default is field.default_factory else f"`{shown(field.default)}`"
        text = " ".join(said.get(field.name, "").split()).replace("|", "\\|")
        yield f"| `{field.name}` | {default} | {text} |"


def field_docs(cls: type) -> dict[str, str]:
    """The texts that stand below the fields of a class."""
    if cls.__module__.partition(".")[0] != "agentlab":
        return {}
    body = next(node for node in parsed(cls.__module__).body if getattr(node, "name", "") == cls.__name__)
    assert isinstance(body, ast.ClassDef)
    return dict(documented(body.body))


def documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Assigned names, each with the text that stands below it."""
    for node, below in itertools.pairwise(body):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            yield from ((target.id, below.value.value) for target in targets if isinstance(target, ast.Name))


@functools.cache
def parsed(module: str) -> ast.Module:
    """The source of a module, as a tree."""
    return ast.parse(inspect.getsource(importlib.import_module(module)))


def methods(cls: type) -> Iterator[str]:
    """A line per public method and property of a class, those that it inherits from agentlab included."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] == "agentlab":
            found |= {name: value for name, value in vars(base).items() if not name.startswith("_")}
    hidden = {field.name for field in fields(cls)} if is_dataclass(cls) else set()
    for name in sorted(set(found) - hidden):
        value = found[name]
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not (inspect.isroutine(plain) or isinstance(value, property)):
            continue
        call = "" if isinstance(value, property) else re.sub(r"^\((self|cls)(, )?", "(", one_line(plain))
        yield f"- `{name}{call}`{after(first_sentence(inspect.getdoc(getattr(cls, name, plain)) or ''))}"


def one_line(function: Any) -> str:
    """The arguments of a function in one line, however many."""
    return re.sub(r",? \)$", ")", " ".join(called(function).split()).replace("( ", "(", 1))


def sentence(value: Any, module: ModuleType, name: str) -> str:
    """What is said of a name: its docstring, or for a made thing the text that stands below it."""
    if not is_value(value):
        return first_sentence(inspect.getdoc(value) or "")
    tree = parsed(module.__name__)
    return first_sentence(dict(documented(tree.body)).get(name, ""))


def first_sentence(text: str) -> str:
    """The first paragraph of a docstring."""
    return " ".join(text.strip().split("\n\n")[0].split())


def after(text: str) -> str:
    return f" — {text}" if text else ""


def as_markdown(text: str) -> str:
    """A docstring with its sections as lists."""
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if SECTION.fullmatch(line):
            inside = True
            lines += [f"**{line[:-1]}**", ""]
        elif inside and (item := ITEM.fullmatch(line)):
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif inside and line.startswith("    "):
            lines.append(f"  {line.strip()}")
        else:
            inside = inside and not line.strip()
            lines.append(line)
    return "\n".join(lines)
