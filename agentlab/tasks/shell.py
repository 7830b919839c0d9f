"""Tasks to be done in a terminal: files to find, count and fix, judged by what is left in the end."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from agentlab.errors import ConfigError, nearest
from agentlab.tasks.base import DrawnTasks, Split
from agentlab.types import Task

Kind: TypeAlias = Literal["find", "count", "fix"]
KINDS = ("find", "count", "fix")
FOLDERS = ("docs", "notes", "logs", "data", "old", "drafts", "mail", "plans")
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jade", "kelp", "larch")
LEVELS = ("INFO", "WARN", "ERROR", "DEBUG")
ANSWER = "answer.txt"
PROMPT = "You are in a folder of a Linux machine. {what}"

Drawn: TypeAlias = tuple[str, dict[str, str], list[dict[str, Any]]]
"""What is asked, the files it begins with, and what must hold in the end."""


def terminal(
    seed: int = 0,
    count: int | None = None,
    *,
    split: Split = "train",
    kinds: Sequence[Kind] = KINDS,
    num_files: int = 8,
    prompt: str = PROMPT,
) -> DrawnTasks:
    """Tasks for `al.environments.Terminal`, with the first files in `data["files"]`.

    `data["checks"]` says what must hold in the end: {"file": path, "is": text} of a file's text,
    spaces at its ends apart, and {"python": program, "prints": text} of what a program prints. They
    are held against the sandbox from outside, where the model cannot read them.

    Args:
        seed: The same seed draws the same tasks.
        count: How many; None for no end.
        split: "eval" asks only what "train" never asks.
        kinds: "find" a file by a word in it, "count" lines of a kind, "fix" a program or a setting.
        num_files: Files among which it happens.
        prompt: How it is asked; must contain {what}.

    Raises:
        ConfigError: an option is impossible.
    """
    if not kinds or isinstance(kinds, str):
        raise ConfigError(f"kinds must be a list of some of {', '.join(KINDS)}, got {kinds!r}.")
    for kind in kinds:
        if kind not in KINDS:
            raise ConfigError(f"There is no kind {kind!r} of terminal task.{nearest(str(kind), KINDS)}")
    if not 2 <= num_files <= 50:
        raise ConfigError(f"num_files must lie in 2 to 50, got {num_files}.")
    if "{what}" not in prompt:
        raise ConfigError(f"prompt must contain {{what}}, got {prompt!r}.")

    def draw(rng: random.Random) -> tuple[str, Callable[[str], Task]]:
        kind = rng.choice(list(kinds))
        what, files, checks = _DRAW[kind](rng, num_files)
        data = {"kind": kind, "files": files, "checks": checks}
        key = f"{what}\n{sorted(files.items())}"
        return key, lambda name: Task(name, prompt.replace("{what}", what), data)

    return DrawnTasks("terminal", draw, seed=seed, count=count, split=split)


def _find(rng: random.Random, num_files: int) -> Drawn:
    wanted, *others = rng.sample(WORDS, len(WORDS))
    paths = _paths(rng, num_files, "txt")
    files = {path: "".join(_line(rng, others) for _ in range(rng.randint(2, 5))) for path in paths}
    path = rng.choice(paths)
    files[path] += f"{wanted} {rng.choice(others)}\n"
    what = f"One file in it or below contains the word {wanted}. Write that file's path into {ANSWER}."
    return what, files, [{"file": ANSWER, "is": [path, f"./{path}"]}]


def _count(rng: random.Random, num_files: int) -> Drawn:
    level = rng.choice(LEVELS)
    files = {}
    for path in _paths(rng, num_files, "log"):
        rows = [f"{rng.choice(LEVELS)} {_line(rng, WORDS)}" for _ in range(rng.randint(3, 12))]
        files[path] = "".join(rows)
    total = sum(line.startswith(level) for text in files.values() for line in text.splitlines())
    what = (
        f"How many lines of all .log files, also of those in folders, begin with {level}? Write the number to {ANSWER}."
    )
    return what, files, [{"file": ANSWER, "is": str(total)}]


def _fix(rng: random.Random, num_files: int) -> Drawn:
    return rng.choice((_fix_program, _fix_setting))(rng, num_files)


def _fix_program(rng: random.Random, num_files: int) -> Drawn:
    name, wrong, right, says = rng.choice(PROGRAMS)
    files = {f"{name}.py": f"def {name}(numbers):\n    return {wrong}\n"}
    files |= {path: _line(rng, WORDS) for path in _paths(rng, num_files - 1, "txt")}
    tries = [[rng.randint(1, 50) for _ in range(rng.randint(2, 6))] for _ in range(4)]
    program = f"from {name} import {name}\nprint([{name}(numbers) for numbers in {tries}])"
    expected = str([right(numbers) for numbers in tries])
    what = f"The function in {name}.py should return {says}, but it does not. Correct it, and keep its name."
    return what, files, [{"python": program, "prints": expected}]


def _fix_setting(rng: random.Random, num_files: int) -> Drawn:
    before, after = rng.sample(range(1000, 10000), 2)
    paths = _paths(rng, num_files, "conf")
    hit = rng.sample(paths, rng.randint(1, min(3, len(paths))))
    files = {path: f"name = {rng.choice(WORDS)}\nport = {before if path in hit else before + 1}\n" for path in paths}
    what = f"Where a .conf file, also in folders, sets port to {before}, set it to {after}. Change nothing else."
    checks = [
        {"file": path, "is": text.replace(f"port = {before}\n", f"port = {after}\n")} for path, text in files.items()
    ]
    return what, files, checks


PROGRAMS: tuple[tuple[str, str, Callable[[Sequence[int]], Any], str], ...] = (
    ("largest", "min(numbers)", max, "the largest of the numbers"),
    ("smallest", "max(numbers)", min, "the smallest of the numbers"),
    ("total", "sum(numbers[1:])", sum, "the sum of all numbers"),
    ("evens", "[n for n in numbers if n % 2]", lambda ns: [n for n in ns if n % 2 == 0], "the even numbers, in order"),
    ("backwards", "numbers", lambda ns: list(ns)[::-1], "the numbers in reverse order"),
    ("squares", "[n + n for n in numbers]", lambda ns: [n * n for n in ns], "the square of each number, in order"),
)
"""Name, wrong expression, what is right, and how it is said."""


def _paths(rng: random.Random, count: int, ending: str) -> list[str]:
    """Different paths, some of them in folders."""
    paths: dict[str, None] = {}
    while len(paths) < count:
        folders = [rng.choice(FOLDERS) for _ in range(rng.randint(0, 2))]
        paths["/".join([*folders, f"{rng.choice(WORDS)}{rng.randint(1, 99)}.{ending}"])] = None
    return list(paths)


def _line(rng: random.Random, words: Sequence[str]) -> str:
    return " ".join(rng.choice(words) for _ in range(rng.randint(3, 6))) + "\n"


_DRAW: Mapping[str, Callable[[random.Random, int], Drawn]] = {"find": _find, "count": _count, "fix": _fix}
