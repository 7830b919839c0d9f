"""Texts of every syntax, written from random calls as published chat templates write them, and read back.

The templates are ours, in the formats of: Qwen 2.5 and 3 and Hermes (JSON in tags), Llama 3.1 (JSON, and
`name.call(…)` for built-in tools), Llama 3.2 (lists of calls in Python), Qwen3-Coder (values printed by
Jinja: `True`, `None`, JSON or Python lists), Gemma 3 (Python in ```tool_code and lists of calls),
FunctionGemma (`<escape>` marks), ReAct (brackets, and JSON input over several lines, fenced or not) and
short calls. Strings are made of what breaks readers: quotes, escapes, commas, brackets, tags, fences and
lines. What a format itself cannot tell from its own marks is left out (see `CANNOT_SAY`).
"""

import json
import random
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import jinja2

from agentlab.bench.contract import Row
from agentlab.chat.syntaxes import PARSERS
from agentlab.types import ToolCall, ToolSpec

NUM_TEXTS = 12_000
CODER_HEAD = "<tool_call>\n<function={{ c.name }}>\n{% for k, v in c.arguments.items() %}<parameter={{ k }}>\n"
CODER_END = "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
KEYWORDS = "{% for k, v in c.arguments.items() %}{{ k }}={{ v|repr }}{% if not loop.last %}, {% endif %}{% endfor %}"
POSITIONAL = "{% for v in c.arguments.values() %}{{ v|repr }}{% if not loop.last %}, {% endif %}{% endfor %}"
EACH, JOINED = "{% for c in calls %}", "{% if not loop.last %}{{ between }}{% endif %}{% endfor %}"
TEMPLATES: Mapping[str, tuple[str, str, str]] = {
    "hermes: qwen": (
        "hermes",
        '<tool_call>\n{"name": {{ c.name|tojson }}, "arguments": {{ c.arguments|tojson }}}\n</tool_call>',
        "\n",
    ),
    "hermes: one pair of tags": (
        "hermes",
        "{% if loop.first %}<tool_call>\n{% endif %}{{ c|tojson }}{% if loop.last %}\n</tool_call>{% endif %}",
        "\n",
    ),
    "json: objects": ("json", "{{ c|tojson }}", "\n"),
    "json: list": ("json", "{% if loop.first %}[{% endif %}{{ c|tojson }}{% if loop.last %}]{% endif %}", ", "),
    "json: fenced": (
        "json",
        "{% if loop.first %}```json\n{% endif %}{{ c|indented }}{% if loop.last %}\n```{% endif %}",
        "\n",
    ),
    "llama3: lines": ("llama3", '{"name": {{ c.name|tojson }}, "parameters": {{ c.arguments|tojson }}}', "\n"),
    "llama3: semicolons": ("llama3", '{"name": {{ c.name|tojson }}, "parameters": {{ c.arguments|tojson }}}', "; "),
    "llama3: prose": (
        "llama3",
        "{% if loop.first %}I will call it.\n{% endif %}"
        '{"name": {{ c.name|tojson }}, "parameters": {{ c.arguments|tojson }}}',
        "; ",
    ),
    "llama3: tag": (
        "llama3",
        '<|python_tag|>{"type": "function", "name": {{ c.name|tojson }}, "parameters": {{ c.arguments|tojson }}}',
        "",
    ),
    "llama3: built in": ("llama3", f"<|python_tag|>{{{{ c.name }}}}.call({KEYWORDS})", "\n"),
    "qwen3_coder: json": (
        "qwen3_coder",
        f"{CODER_HEAD}{{{{ v if v is string or v is none or v is boolean else v|tojson }}}}{CODER_END}",
        "\n",
    ),
    "qwen3_coder: python": ("qwen3_coder", f"{CODER_HEAD}{{{{ v }}}}{CODER_END}", "\n"),
    "gemma: block": (
        "gemma",
        f"{{% if loop.first %}}```tool_code\n{{% endif %}}{{{{ c.name }}}}({KEYWORDS})"
        "{% if loop.last %}\n```{% endif %}",
        "\n",
    ),
    "gemma: print": ("gemma", f"```tool_code\nresult = {{{{ c.name }}}}({POSITIONAL})\nprint(result)\n```", "\n"),
    "gemma: list": (
        "gemma",
        f"{{% if loop.first %}}[{{% endif %}}{{{{ c.name }}}}({KEYWORDS}){{% if loop.last %}}]{{% endif %}}",
        ", ",
    ),
    "llama3: list": (
        "llama3",
        f"{{% if loop.first %}}[{{% endif %}}{{{{ c.name }}}}({KEYWORDS}){{% if loop.last %}}]{{% endif %}}",
        ", ",
    ),
    "gemma: functiongemma": (
        "gemma",
        "<start_function_call>call:{{ c.name }}{{ c.arguments|escaped }}<end_function_call>",
        "",
    ),
    "react: brackets": ("react", f"Action: {{{{ c.name }}}}[{KEYWORDS}]", "\n"),
    "react: call": ("react", f"Thought: I need it.\nAction: {{{{ c.name }}}}({POSITIONAL})", "\n"),
    "react: input": ("react", "Action: {{ c.name }}\nAction Input: {{ c.arguments|indented }}", "\nObservation: ok\n"),
    "react: fenced": ("react", "Action: {{ c.name }}\nAction Input:\n```json\n{{ c.arguments|indented }}\n```", "\n"),
    "short: named": ("short", f"{{{{ c.name }}}}({KEYWORDS})", " and "),
    "short: positional": ("short", f"I use {{{{ c.name }}}}({POSITIONAL})", "\n"),
}
"""By format: the syntax that reads it, the template of one call, and what stands between calls."""
CANNOT_SAY: Mapping[str, re.Pattern[str]] = {
    "qwen3_coder": re.compile(
        r"</parameter>\s*(?:<parameter=|</function>)|^[ \t]*<(?:parameter|function)=[^>]*>[ \t]*$", re.M
    ),
    "functiongemma": re.compile("<escape>"),
}
"""Texts that a format cannot write without their being read as its own marks."""
FRAGMENTS = (
    *("'", '"', "'''", '"""', "\\", "\\n", "\n", "\t", "=", ",", ", ", ": ", "(", ")", "[", "]", "{", "}", ";", "#"),
    *(
        "a = b",
        "it's",
        'say "hi"',
        "k=3",
        "C:\\new",
        "\\d+",
        "Oslo, Norway",
        "é",
        "日本",
        "😀",
        "\u2028",
        "```",
        "```\n",
    ),
    *(
        "<tool_call>",
        "</tool_call>",
        "<function=now>",
        "</function>",
        "</parameter>",
        "<parameter=day>",
        "now()",
        "print(",
    ),
    *("<|python_tag|>", "```tool_code\n", "<start_function_call>", "<end_function_call>", "<escape>", "Action: now"),
    *('{"name": "now", "arguments": {}}', "null", "None", "true", "True", "12", "-1.5", " ", "x", "search(query='a')"),
)


def _spec(name: str, required: Sequence[str], **properties: Any) -> ToolSpec:
    schemas = {key: value if isinstance(value, dict) else {"type": value} for key, value in properties.items()}
    return ToolSpec(name, "", {"type": "object", "properties": schemas, "required": list(required)})


TOOLS = (
    _spec("now", ()),
    _spec("bash", ("command",), command="string"),
    _spec("write", ("path", "content"), path="string", content="string"),
    _spec(
        "log",
        ("day", "share", "ok", "tags", "note", "limit"),
        day="integer",
        share="number",
        ok="boolean",
        tags={"type": "array", "items": {"type": "string"}},
        note={"type": "object"},
        limit={"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ),
)


def random_text(rng: random.Random) -> str:
    """A text of fragments that break readers, and of ordinary characters."""
    parts = [
        rng.choice(FRAGMENTS) if rng.random() < 0.7 else rng.choice(string.printable) for _ in range(rng.randint(0, 6))
    ]
    return "".join(parts)


def random_value(rng: random.Random, schema: Mapping[str, Any]) -> Any:
    """A value that the schema of one argument of `TOOLS` admits."""
    makers: dict[str, Callable[[], Any]] = {
        "string": lambda: random_text(rng),
        "integer": lambda: rng.choice([0, 1, -7, rng.randint(-(10**12), 10**12)]),
        "number": lambda: rng.choice([0.5, -2.25, 1e-7, 3e20, rng.uniform(-9, 9)]),
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [random_text(rng) for _ in range(rng.randint(0, 3))],
        "object": lambda: {
            f"k{i}": rng.choice([None, True, 3, random_text(rng), [random_text(rng)]]) for i in range(rng.randint(0, 3))
        },
        "null": lambda: None,
    }
    options = [option["type"] for option in schema.get("anyOf", [schema])]
    return makers[rng.choice(options)]()


def random_call(rng: random.Random) -> ToolCall:
    """A call of one of `TOOLS` with all its arguments."""
    tool = rng.choice(TOOLS)
    return ToolCall(
        tool.name, {key: random_value(rng, schema) for key, schema in tool.parameters["properties"].items()}
    )


def can_say(form: str, call: ToolCall) -> bool:
    """Whether a format can write this call at all."""
    limits = [pattern for name, pattern in CANNOT_SAY.items() if name in form]
    texts = [text for value in call.arguments.values() for text in _texts(value)]
    return not any(pattern.search(text) for pattern in limits for text in texts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def written(form: str, calls: Sequence[ToolCall]) -> str:
    """The calls as the format's template writes them."""
    shown = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
    return _template(form).render(calls=shown, between=TEMPLATES[form][2])


@cache
def _template(form: str) -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=False, keep_trailing_newline=True, autoescape=False)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.filters["indented"] = lambda value: json.dumps(value, ensure_ascii=False, indent=2)
    environment.filters |= {"repr": repr, "escaped": _escaped}
    return environment.from_string(EACH + TEMPLATES[form][1] + JOINED)


def _escaped(value: Any) -> str:
    """A value as FunctionGemma's template writes it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_escaped(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_escaped, value)) + "]"
    return f"<escape>{value}<escape>" if isinstance(value, str) else json.dumps(value)


def samples(num_texts: int = NUM_TEXTS, seed: int = 0) -> Iterator[tuple[str, str, tuple[ToolCall, ...]]]:
    """(format, text, the calls in it), the formats in turn."""
    rng = random.Random(seed)
    forms = list(TEMPLATES)
    for index in range(num_texts):
        form = forms[index % len(forms)]
        calls: list[ToolCall] = []
        while len(calls) < 1 + index // len(forms) % 3:
            call = random_call(rng)
            if can_say(form, call):
                calls.append(call)
        yield form, written(form, calls), tuple(calls)


def misread(num_texts: int = NUM_TEXTS, seed: int = 0) -> list[tuple[str, str]]:
    """(format, text) of those texts that are not read back as exactly the calls that were written."""
    return [
        (form, text)
        for form, text, calls in samples(num_texts, seed)
        if PARSERS[TEMPLATES[form][0]].parse(text, TOOLS).calls != calls
    ]


def rows() -> list[Row]:
    """The share of texts that are read back exactly."""
    share = 1 - len(misread()) / NUM_TEXTS
    return [Row.at_least(f"calls read back exactly, of {NUM_TEXTS:,} texts in {len(TEMPLATES)} formats", share, 1.0)]
