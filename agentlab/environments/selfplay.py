"""Self-play: two agents at one game, each an episode of its own with its own reward, trained like any other."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from agentlab.concurrency import Bell
from agentlab.environments.base import BaseTaskEnv
from agentlab.environments.place import Place, current_place
from agentlab.errors import ConfigError, EnvironmentError_
from agentlab.numerals import only_number
from agentlab.types import EnvStepResult, Task, check_kwargs


@dataclass(frozen=True)
class Move:
    """What came of a move: what each player sees next, what each earned, and whether the game is over."""

    observations: tuple[Any, Any]
    rewards: tuple[float, float] = (0.0, 0.0)
    done: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)


class TwoPlayerGame(abc.ABC):
    """A game of two players who move in turn; owned by the loop that plays it, so it must not block.

    Args:
        task: What is played; never changed.
    """

    to_move: int = 0
    """The player whose turn it is, 0 or 1; kept by the subclass."""

    def __init__(self, task: Task) -> None:
        self.task = task

    @abc.abstractmethod
    def begin(self) -> tuple[Any, Any]:
        """What each player sees before their first move."""

    @abc.abstractmethod
    def play(self, player: int, action: Any) -> Move:
        """What comes of an `Action` of the player whose turn it is."""

    def close(self) -> None:
        """Give back what the game holds; called once, when both players have left."""
        return None


class SelfPlay:
    """Makes environments in which the episodes of a group play against each other; itself an `env_class`.

    Episodes 0 and 1 of a group sit at one table, 2 and 3 at the next, and so on. Each is an ordinary
    episode: its agent sees what its player sees, its trajectory is trained with its player's reward.
    So `group_size` must be even and `max_concurrency` at least 2; the time in which the other thinks
    counts as the time of a step (`step_timeout_s`), and the wait for a partner as that of a reset. When
    one player's episode is cut or fails before the game is over, the other's fails, without a reward.
    A failed episode cannot be played again alone: leave `max_retries` at 0.

    Tables are owned by the loop that plays the episodes.

    Args:
        game_class: Makes a `TwoPlayerGame` from the task and the keyword arguments of the environment.
        partner_timeout_s: How long a player waits for the other to sit down.

    Raises:
        ConfigError: partner_timeout_s is not above 0.
    """

    def __init__(self, game_class: Callable[..., TwoPlayerGame], *, partner_timeout_s: float = 30.0) -> None:
        if not partner_timeout_s > 0:
            raise ConfigError(f"partner_timeout_s must be above 0, got {partner_timeout_s}.")
        self.game_class, self.partner_timeout_s = game_class, partner_timeout_s
        self.__name__ = f"SelfPlay({getattr(game_class, '__name__', 'game')})"
        self._tables: dict[Place, Table] = {}

    def __call__(self, task: Task, **game_kwargs: Any) -> "Seat":
        check_kwargs(self.game_class, game_kwargs, given_as="env_kwargs", reserved=1)
        return Seat(task, self, lambda: self.game_class(task, **game_kwargs))

    def table(self, place: Place, make: Callable[[], TwoPlayerGame]) -> "Table":
        """The table of an even episode and the odd one after it: who comes first sets it, the other finds it."""
        even = replace(place, episode=place.episode // 2 * 2)
        if even in self._tables:
            return self._tables.pop(even)
        self._tables[even] = Table(make(), self.partner_timeout_s, lambda: self._tables.pop(even, None))
        return self._tables[even]


class Table:
    """One game and its two players; owned by the loop."""

    def __init__(self, game: TwoPlayerGame, partner_timeout_s: float, forget: Callable[[], Any]) -> None:
        self.game = game
        self.observations: list[Any] = list(game.begin())
        self.rewards = [0.0, 0.0]
        self.info: dict[str, Any] = {}
        self.done = False
        self._timeout_s, self._forget = partner_timeout_s, forget
        self._seated: set[int] = set()
        self._left: set[int] = set()
        self._changed = Bell()

    async def sit(self, player: int) -> None:
        """Take a place, and wait for the other and for one's first turn.

        Raises:
            EnvironmentError_: nobody came, or the other left.
        """
        self._seated.add(player)
        self._changed.ring()
        with anyio.move_on_after(self._timeout_s):
            while len(self._seated) < 2:
                await self._changed.wait()
        if len(self._seated) < 2:
            self._forget()
            raise EnvironmentError_(
                f"No second player came within {self._timeout_s} s. Self-play pairs the episodes of a group: make "
                "group_size (k in evaluate) even and max_concurrency at least 2."
            )
        await self.turn(player)

    async def turn(self, player: int) -> None:
        """Wait until it is this player's turn, or the game is over.

        Raises:
            EnvironmentError_: the other left before the game was over.
        """
        while not self.done and self.game.to_move != player:
            if self._left:
                raise EnvironmentError_("The other player left before the game was over: see that episode's record.")
            await self._changed.wait()

    def play(self, player: int, action: Any) -> None:
        """Make a move, and let the other know."""
        if self._left and not self.done:
            raise EnvironmentError_("The other player left before the game was over: see that episode's record.")
        move = self.game.play(player, action)
        self.observations = list(move.observations)
        self.rewards = [have + new for have, new in zip(self.rewards, move.rewards, strict=True)]
        self.info, self.done = dict(move.info), move.done
        self._changed.ring()

    def earned(self, player: int) -> float:
        """What the player has earned since it was asked last."""
        reward, self.rewards[player] = self.rewards[player], 0.0
        return reward

    def leave(self, player: int) -> None:
        """Stand up; the game is closed when nobody is left."""
        if player in self._left:
            return
        self._left.add(player)
        self._changed.ring()
        if self._left >= self._seated:
            self._forget()
            self.game.close()


class Seat(BaseTaskEnv):
    """The game as one of its two players sees it; owned by the loop."""

    def __init__(self, task: Task, room: SelfPlay, make: Callable[[], TwoPlayerGame]) -> None:
        super().__init__(task)
        self._room, self._make = room, make
        self._table: Table | None = None
        self._player = 0

    async def _initial_observation(self) -> Any:
        place = current_place()
        if place is None:
            raise EnvironmentError_(
                "Self-play needs the episodes of a group: play it by a learner, evaluate(k=2) or an orchestrator."
            )
        self._player = place.episode % 2
        self._table = self._room.table(place, self._make)
        await self._table.sit(self._player)
        if self._table.done:
            raise EnvironmentError_("The game was over before this player's first turn: there is nothing to learn.")
        return self._table.observations[self._player], {"player": self._player}

    async def _step_impl(self, action: Any) -> EnvStepResult:
        table, player = self._table, self._player
        assert table is not None, "BaseTaskEnv.step comes after reset"
        if not table.done:
            table.play(player, action)
            await table.turn(player)
        info = {**table.info, "player": player}
        return EnvStepResult(table.observations[player], table.earned(player), table.done, info)

    async def close(self) -> None:
        if self._table is not None:
            self._table.leave(self._player)


class Nim(TwoPlayerGame):
    """Who takes the last stone wins (1 against -1). An answer that is no legal number takes one stone and costs 0.1.

    Args:
        task: `data["stones"]` is how many there are, 10 if it does not say; its prompt comes first.
        most: Stones that may be taken at once.

    Raises:
        ConfigError: there is no stone, or none may be taken.
    """

    def __init__(self, task: Task, most: int = 3) -> None:
        super().__init__(task)
        self.stones, self.most = task.data.get("stones", 10), most
        if not isinstance(self.stones, int) or self.stones < 1 or most < 1:
            raise ConfigError(f"Nim needs at least 1 stone and most of at least 1, got {self.stones!r} and {most}.")

    def begin(self) -> tuple[Any, Any]:
        return self._ask(""), self._ask("")

    def play(self, player: int, action: Any) -> Move:
        said = str(getattr(action, "value", action)).strip()
        wanted = only_number(said)
        legal = wanted in range(1, min(self.most, self.stones) + 1)
        taken = int(wanted) if legal and wanted else 1
        self.stones -= taken
        self.to_move = 1 - player
        rewards = [0.0, 0.0]
        rewards[player] -= 0.0 if legal else 0.1
        if self.stones:
            told = self._ask(f"The other took {taken}. ")
            return Move((told, told), (rewards[0], rewards[1]))
        rewards[player] += 1.0
        rewards[1 - player] -= 1.0
        return Move((None, None), (rewards[0], rewards[1]), True, {"winner": player})

    def _ask(self, before: str) -> str:
        rules = f"{before}There are {self.stones} stones. Take 1 to {min(self.most, self.stones)}; the last one wins."
        return "\n".join(filter(None, (self.task.prompt, f"{rules} Answer with the number alone.")))
