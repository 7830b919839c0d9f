"""Any Gymnasium environment, told in text and steered by text."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentlab.environments.base import BaseTaskEnv
from agentlab.errors import ConfigError, nearest
from agentlab.numerals import last_integer, numerals, only_number, without_reasoning
from agentlab.types import EnvStepResult, Task

HIGHLIGHT = re.compile(r"\x1b\[4\dm(.)")
COLOUR = re.compile(r"\x1b\[[\d;]*m")
SEPARATOR = re.compile(r"[\s,;\[\]()]+")
MAX_NUMBER = 1e300
"""Nothing larger is an action: it would not be a finite float."""
SHOWN_NUMBERS = 64
"""Numbers of an array that are told; of a longer one this many and its shape."""


class NotAnAction(Exception):
    """The text names no action; says what would."""


class GymEnvironment(BaseTaskEnv):
    """One episode of a Gymnasium environment.

    By default an observation is told as `tell` tells it, or as the environment draws it where it was
    made with `render_mode="ansi"`; an action is read out of the model's text as `read_action` reads it.
    Text that names no action takes a turn, earns nothing, and is answered by what can be done.

    Args:
        task: Its prompt stands before the first observation. The episode begins under
            `data["seed"]`, or under a seed made from the task's id: all episodes of a task begin alike.
        env_id: What `gymnasium.make` takes, or a class or function that makes the environment.
        make_kwargs: Given to it.
        actions: Names for the actions of a discrete space, in their order, e.g. ["left", "right"].
        observe: `observe(observation, info) -> str`, in place of the default.
        act: `act(text) -> action`, in place of the default; a ValueError tells the model what is wrong.
        max_turns: Steps after which the episode is cut; None leaves it to the environment's own limit.

    Raises:
        ConfigError: Gymnasium or the environment is missing, or the names do not fit its actions.
    """

    def __init__(
        self,
        task: Task,
        env_id: str | Callable[..., Any],
        *,
        make_kwargs: Mapping[str, Any] | None = None,
        actions: Sequence[str] | None = None,
        observe: Callable[[Any, Mapping[str, Any]], str] | None = None,
        act: Callable[[str], Any] | None = None,
        max_turns: int | None = None,
    ) -> None:
        super().__init__(task, max_turns=max_turns)
        self._gym = made(env_id, make_kwargs or {})
        self._names = checked_names(actions, self._gym.action_space)
        self._observe, self._act = observe, act

    def _initial_observation(self) -> Any:
        observation, info = self._gym.reset(seed=seed_of(self.task))
        return "\n".join(filter(None, (self.task.prompt, self._shown(observation, info))))

    def _step_impl(self, action: Any) -> EnvStepResult:
        value = action.value if hasattr(action, "value") else action
        try:
            chosen = self._chosen(value)
        except NotAnAction as wrong:
            return EnvStepResult(str(wrong), 0.0, False, {"invalid_action": True})
        observation, reward, terminated, truncated, info = self._gym.step(chosen)
        told = dict(info) | ({"truncation": "max_turns"} if truncated and not terminated else {})
        told.pop("reward_parts", None)
        return EnvStepResult(self._shown(observation, info), float(reward), bool(terminated or truncated), told)

    def close(self) -> None:
        self._gym.close()

    def _chosen(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if self._act is None:
            return read_action(value, self._gym.action_space, self._names)
        try:
            return self._act(value)
        except ValueError as error:
            raise NotAnAction(f"{value[:40]!r} is no action: {error}") from error

    def _shown(self, observation: Any, info: Mapping[str, Any]) -> str:
        if self._observe is not None:
            return self._observe(observation, info)
        if getattr(self._gym, "render_mode", None) == "ansi":
            return plain(self._gym.render())
        return tell(observation)


def made(env_id: str | Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The environment that `env_id` names or makes.

    Raises:
        ConfigError: Gymnasium is not installed, there is no such environment, or it refuses the options.
    """
    if callable(env_id):
        return env_id(**options)
    try:
        import gymnasium
    except ImportError as error:
        raise ConfigError(
            "GymEnvironment needs Gymnasium, which is not installed. Install it: pip install 'gymnasium[toy-text]'."
        ) from error
    try:
        return gymnasium.make(env_id, **options)
    except gymnasium.error.Error as error:
        valid = nearest(str(env_id), [name for name in gymnasium.registry if "/" not in name])
        raise ConfigError(f"Gymnasium cannot make {env_id!r}: {error}.{valid:.200}") from error


def checked_names(names: Sequence[str] | None, space: Any) -> tuple[str, ...]:
    """The names of the actions in lower case.

    Raises:
        ConfigError: they are not one for each action of a discrete space.
    """
    if names is None:
        return ()
    count = int(getattr(space, "n", 0)) if type(space).__name__ == "Discrete" else 0
    lowered = tuple(str(name).lower() for name in names)
    if len(lowered) != count or len(set(lowered)) != count:
        raise ConfigError(
            f"actions must hold one name for each of {count} discrete actions, got {list(names)!r:.120}. "
            "For another action space give act=, a function from text to an action."
        )
    return lowered


def seed_of(task: Task) -> int:
    """The seed under which every episode of this task begins."""
    seed = task.data.get("seed")
    if isinstance(seed, int) and not isinstance(seed, bool):
        return seed
    return int.from_bytes(hashlib.blake2b(str(task.id).encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def tell(observation: Any) -> str:
    """An observation in text: text as it is, numbers and arrays rounded to 4 digits, dictionaries by line."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        return "\n".join(f"{name}: {tell(value)}" for name, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(map(tell, observation))
    if hasattr(observation, "shape") and hasattr(observation, "ravel"):
        flat = observation.ravel()
        shown = ", ".join(map(_number, flat[:SHOWN_NUMBERS].tolist()))
        more = f", … (shape {tuple(observation.shape)})" if flat.size > SHOWN_NUMBERS else ""
        return shown if observation.ndim == 0 else f"[{shown}{more}]"
    return _number(observation)


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def plain(drawing: Any) -> str:
    """A drawing for a terminal as plain text: what it marks by a coloured background stands in brackets."""
    return COLOUR.sub("", HIGHLIGHT.sub(r"[\1]", str(drawing))).strip("\n")


def read_action(text: str, space: Any, names: Sequence[str] = ()) -> Any:
    """The action that a text names last.

    A discrete space takes one of `names`, or a whole number; a space of arrays takes the last list in brackets,
    or as many numbers as it has places; a space of text takes the text. Numbers are read as by `rewards.same_number`.

    Raises:
        NotAnAction: there is none, or it is not in the space.
    """
    kind = type(space).__name__
    if kind == "Text":
        return text
    text = without_reasoning(text)
    if kind == "Discrete":
        return _discrete(text, space, names)
    if kind not in ("Box", "MultiDiscrete", "MultiBinary"):
        raise ConfigError(f"Actions of {space} cannot be read from text. Give act=, a function from text to an action.")
    size = int(space.sample().size)
    numbers = listed_numbers(text, size)
    action = None if numbers is None else _array(numbers, space)
    if action is None:
        raise NotAnAction(
            f"{text[:40]!r} is no action. Answer with {size} numbers in {space}, e.g. {json.dumps([0] * size)}."
        )
    return action


def listed_numbers(text: str, size: int) -> list[float] | None:
    """As many numbers as wanted: the last list in brackets, or else the last of the text; None if there are not."""
    inside = _last_brackets(text)
    found = [only_number(part) for part in SEPARATOR.split(text if inside is None else inside) if part]
    if inside is None and (len(found) != size or None in found):
        found = [number.value for number in numerals(text)][-size:]
    numbers = [float(number) for number in found if number is not None and abs(number) < MAX_NUMBER]
    return numbers if len(numbers) == len(found) == size else None


def _last_brackets(text: str) -> str | None:
    """What stands in the last brackets with a digit in them, the outermost of those in each other; None if none do."""
    end, depth = text.rfind("]"), 0
    for begin in range(end, -1, -1):
        depth += (text[begin] == "]") - (text[begin] == "[")
        if depth == 0:
            return text[begin + 1 : end] if re.search(r"\d", text[begin:end]) else None
    return None


def _array(numbers: Sequence[float], space: Any) -> Any:
    """The numbers as an action of the space; None where one has no room in it, or would have to be rounded."""
    import numpy as np

    exact = np.asarray(numbers).reshape(space.shape)
    with np.errstate(all="ignore"):
        action = exact.astype(space.dtype)
    kept = np.isfinite(action).all() and (action.dtype.kind == "f" or np.array_equal(action, exact))
    return action if kept and space.contains(action) else None


def _discrete(text: str, space: Any, names: Sequence[str]) -> int:
    start, count = int(space.start), int(space.n)
    if names:
        found = re.findall(
            rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})(?!\w)", text.lower()
        )
        if found:
            return start + names.index(found[-1])
    whole = last_integer(text)
    if whole is not None and start <= whole < start + count:
        return whole
    wanted = ", ".join(names) if names else f"a number from {start} to {start + count - 1}"
    raise NotAnAction(f"{text[:40]!r} is no action. Answer {wanted}.")
