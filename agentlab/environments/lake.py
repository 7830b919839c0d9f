"""FrozenLake as text, over Gymnasium's own environment."""

from collections.abc import Sequence
from typing import Any, Literal

from agentlab.environments.base import BaseTaskEnv
from agentlab.errors import ConfigError, nearest
from agentlab.tasks.lake import MOVES, lake_map, shortest_way
from agentlab.types import EnvStepResult, Task

HINTS = ("none", "goal", "way")
MARKS = {"S": ".", "F": ".", "H": "O", "G": "G"}


class FrozenLake(BaseTaskEnv):
    """A walk over a frozen lake, told in text; reward 1 at the goal, 0 otherwise.

    The action is one of left, right, up and down; anything else takes a turn and is answered by
    saying so. Needs Gymnasium, which is imported when the first one is made.

    Args:
        task: A task with `data["map"]` or `data["seed"]`, or a seed for the map.
        size: Rows and columns of a map drawn from a seed.
        is_slippery: Whether a move goes astray two times out of three.
        hint: "goal" says where the goal lies, "way" also a good next move.
        max_turns: Moves after which the walk is cut; 4 per row and column if None.

    Raises:
        ConfigError: an option is impossible, or Gymnasium is missing.
    """

    def __init__(
        self,
        task: Task | int,
        size: int = 4,
        is_slippery: bool = False,
        *,
        hint: Literal["none", "goal", "way"] = "none",
        max_turns: int | None = None,
    ) -> None:
        self.check_options(hint=hint)
        self.hint = hint
        given = task if isinstance(task, Task) else Task(f"frozen_lake/{task}", "", {"seed": task})
        self.lake: tuple[str, ...] = map_of(given, size)
        super().__init__(given, max_turns=4 * len(self.lake) if max_turns is None else max_turns)
        self._gym = make_gym(self.lake, is_slippery)

    @classmethod
    def check_options(cls, *, hint: Any = "none", **options: Any) -> None:
        """See `BaseTaskEnv.check_options`."""
        super().check_options(**options)
        if hint not in HINTS:
            raise ConfigError(f"There is no hint {hint!r}.{nearest(str(hint), HINTS)}")

    def _initial_observation(self) -> str:
        self._gym.reset(seed=int(self.task.data.get("seed", 0)))
        return "\n".join(filter(None, (self.task.prompt, self._shown())))

    def _step_impl(self, action: Any) -> EnvStepResult:
        move = str(action.value if hasattr(action, "value") else action).strip().lower()
        if move not in MOVES:
            refused = f"{move[:40]!r} is no move. Answer left, right, up or down."
            return EnvStepResult(f"{refused}\n{self._shown()}", 0.0, False, {"invalid_move": True})
        _, reward, ended, _, _ = self._gym.step(list(MOVES).index(move))
        text = ("You reached the goal." if reward > 0 else "You fell into a hole.") if ended else self._shown()
        return EnvStepResult(text, float(reward), bool(ended), {"position": self._position()})

    def close(self) -> None:
        self._gym.close()

    def _position(self) -> tuple[int, int]:
        return divmod(int(self._gym.unwrapped.s), len(self.lake[0]))

    def _shown(self) -> str:
        row, column = self._position()
        lines = [[MARKS[field] for field in line] for line in self.lake]
        lines[row][column] = "A"
        drawn = "\n".join(" ".join(line) for line in lines)
        return "\n".join(filter(None, (f"Map (A you, G goal, O hole, . ice):\n{drawn}", self._hint(row, column))))

    def _hint(self, row: int, column: int) -> str:
        if self.hint == "none":
            return ""
        down, right = len(self.lake) - 1 - row, len(self.lake[0]) - 1 - column
        goal = f"The goal is {down} down and {right} right."
        way = shortest_way(self.lake, (row, column)) if self.hint == "way" else None
        return f"{goal} A good move is {way[0]}." if way else goal


def map_of(task: Task, size: int) -> tuple[str, ...]:
    """The map of a task: its own, or the one that its seed draws.

    Raises:
        ConfigError: it has neither, or its map is malformed.
    """
    lake: Sequence[str] | None = task.data.get("map")
    if lake is None and isinstance(task.data.get("seed"), int):
        return lake_map(task.data["seed"], size)
    rows = tuple(lake or ())
    fits = rows and all(isinstance(row, str) and len(row) == len(rows[0]) and set(row) <= set("SFHG") for row in rows)
    if not fits or rows[0][0] != "S" or rows[-1][-1] != "G":
        raise ConfigError(
            f"Task {task.id!r} must have data['seed'], or data['map'] with rows of S, F, H and G that begin "
            f"with S and end with G, got {lake!r:.80}."
        )
    return rows


def make_gym(lake: Sequence[str], is_slippery: bool) -> Any:
    """Gymnasium's FrozenLake on this map, without its own limit of steps.

    Raises:
        ConfigError: Gymnasium is not installed.
    """
    try:
        from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
    except ImportError as error:
        raise ConfigError(
            "FrozenLake needs Gymnasium, which is not installed. Install it: pip install 'gymnasium[toy-text]'."
        ) from error
    return FrozenLakeEnv(desc=list(lake), is_slippery=is_slippery)
