"""Rewards for programs: the answer's code is run against tests, in a sandbox that is handed in."""

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agentlab.errors import ConfigError, RewardError
from agentlab.rewards.score import Reward
from agentlab.types import Task

FENCED = re.compile(r"```[^\n`]{0,20}\n(.*?)```", re.DOTALL)
MAX_TESTS = 100


class RunsPython(Protocol):
    """A sandbox or a pool of them, of `al.tools`."""

    def run(self, language: Any, text: str, stdin: str = "", *, clear: bool = False) -> Any: ...


def code_tests(
    sandbox: RunsPython, *, partial: bool = False, code_of: Callable[[str], str] | None = None
) -> Callable[[Task, str], Reward]:
    """A reward function that runs the answer's program against `task.data["tests"]`.

    The tests are a list. Each is one of:

    - {"input": text, "output": text}: what the program prints when it reads the input; spaces at the
      ends of lines apart.
    - {"call": "add(2, 3)", "equals": 5}: what an expression gives after the program has run; the
      value must be plain data (JSON; tuples count as lists).
    - {"assert": "assert add(2, 3) == 5"}: statements that must run to their end after the program.

    With the first two forms the right answer never enters the sandbox. The last runs in the process
    of the program that it tests, and a program written to deceive it can do so.

    Args:
        sandbox: An `al.tools.SandboxPool` or an `al.tools.Sandbox`; each test gets it empty.
        partial: Reward the share of tests that pass, not only all of them.
        code_of: Takes the program out of the answer. None: the last fenced block, or else all of it.

    Returns:
        A function of (task, answer) with the parts "tests", the share that passes, and "runs", 1
        where no test failed by an error or a limit.

    Raises:
        ConfigError: sandbox is none.
    """
    if not callable(getattr(sandbox, "run", None)):
        raise ConfigError(
            f"sandbox must be an al.tools.SandboxPool or an al.tools.Sandbox, got {type(sandbox).__name__}."
        )

    def tests_passed(task: Task, answer: str) -> Reward:
        tests = checked_tests(task)
        code = (code_of or code_in)(answer)
        outcomes = [_outcome(sandbox, code, test) for test in tests]
        share = sum(passed for passed, _ in outcomes) / len(tests)
        parts = {"tests": share, "runs": float(all(ran for _, ran in outcomes))}
        return Reward(share if partial else float(share == 1), parts)

    return tests_passed


def code_in(answer: str) -> str:
    """The program of an answer: its last fenced block, or else all of it."""
    found = FENCED.findall(answer)
    return found[-1] if found else answer


def checked_tests(task: Task) -> Sequence[Mapping[str, Any]]:
    """The tests of a task.

    Raises:
        RewardError: there are none, or one is malformed.
    """
    tests = task.data.get("tests")
    if not isinstance(tests, Sequence) or isinstance(tests, str) or not 1 <= len(tests) <= MAX_TESTS:
        raise RewardError(
            f"code_tests needs task.data['tests'], a list of 1 to {MAX_TESTS}; task {task.id!r} has {tests!r:.80}."
        )
    for test in tests:
        if not isinstance(test, Mapping) or set(test) not in ({"input", "output"}, {"call", "equals"}, {"assert"}):
            raise RewardError(
                'A test must be {"input", "output"}, {"call", "equals"} or {"assert"}; '
                f"task {task.id!r} has {test!r:.80}."
            )
    return tests


def _outcome(sandbox: RunsPython, code: str, test: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a test passes, and whether the program ran to its end."""
    if "input" in test:
        ran = sandbox.run("python", code, str(test["input"]), clear=True)
        return ran.ok and _lines(ran.output) == _lines(str(test["output"])), ran.ok
    mark = secrets.token_hex(8)
    if "call" in test:
        after = f"import json as _json\nprint('\\n{mark}' + _json.dumps({test['call']}))"
    else:
        after = f"{test['assert']}\nprint('\\n{mark}true')"
    ran = sandbox.run("python", f"{code}\n\n{after}\n", clear=True)
    said = ran.output.rstrip("\n").rpartition("\n")[2]
    if not ran.ok or not said.startswith(mark):
        return False, ran.ok
    try:
        value = json.loads(said.removeprefix(mark))
    except ValueError:
        return False, True
    return value == (_plain(test["equals"]) if "call" in test else True), True


def _plain(value: Any) -> Any:
    """A value as it is after a journey through JSON."""
    return json.loads(json.dumps(value))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
