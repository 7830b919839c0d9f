"""From rewards to the advantage of every sampled token: shaping, group statistics, credit. On the host, in float64."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentlab.errors import ConfigError
from agentlab.rewards import finite
from agentlab.types import Trajectory, TrajectoryGroup

EQUAL_REWARDS = 1e-9
"""Rewards of a group that differ by less than this share of the largest count as equal."""


@dataclass(frozen=True, eq=False)
class Play:
    """What credit assignment sees of one trajectory."""

    group: int
    """Number of its group in the update."""
    reward: float
    """Shaped; NaN where it is missing."""
    turn_rewards: np.ndarray
    """[turns] float64; their sum is `reward`."""
    turns: np.ndarray
    """[tokens] int; the turn that sampled each of its sampled tokens, in their order; empty where that
    is not known."""
    penalties: np.ndarray
    """[tokens] float64; what each sampled token costs: beta times the divergence where that is taken
    off the reward, else 0."""

    @property
    def tokens(self) -> int:
        """Sampled ones."""
        return len(self.penalties)


Advantages = Callable[[np.ndarray], np.ndarray]
"""Rewards that are compared with each other [n], NaN where missing, to advantages [n]."""
Credit = Callable[[Sequence[Play], Advantages], Sequence[np.ndarray]]
"""All trajectories of an update, and how rewards are compared, to advantages [tokens] of each trajectory."""
Shaping = Callable[[Trajectory], float]
"""What is added to the reward of a trajectory."""


def group_advantages(rewards: Any, normalize: bool = True) -> np.ndarray:
    """How much better each trajectory did than its own group: (r - mean) / std.

    A group whose rewards are all equal teaches nothing: its advantages are exactly 0. Missing
    rewards (not finite) are left out of mean and std and get the advantage 0.

    Args:
        rewards: [..., group_size]; any scale. Statistics are over the last axis, in float64.
        normalize: Divide by the group's standard deviation (GRPO). False keeps the plain
            difference, in reward units (Dr. GRPO).

    Returns:
        Advantages, float64, shaped as `rewards`; each group sums to 0 up to rounding.

    Differs from the paper where std is 0 or all difference is rounding (see EQUAL_REWARDS): 0
    there, and so no epsilon is added to std, which is that of the population.

    Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2;
        Liu et al. 2025 (arXiv:2503.20783) for normalize=False.
    """
    centred, spread = centred_and_spread(rewards)
    return centred / np.where(spread > 0, spread, 1.0) if normalize else centred


def centred_and_spread(rewards: Any) -> tuple[np.ndarray, np.ndarray]:
    """(r - mean, std of the population), over the last axis, which the second has with size 1; float64.

    Missing rewards (not finite) are left out, and 0 in the first. Where all are equal both are exactly 0.
    """
    rewards = np.asarray(rewards, np.float64)
    scored = np.isfinite(rewards)
    values = np.where(scored, rewards, 0.0)
    count = np.maximum(scored.sum(-1, keepdims=True), 1)
    centred = np.where(scored, values - values.sum(-1, keepdims=True) / count, 0.0)
    highest = np.max(values, axis=-1, keepdims=True, where=scored, initial=-np.inf)
    lowest = np.min(values, axis=-1, keepdims=True, where=scored, initial=np.inf)
    differs = highest - lowest > EQUAL_REWARDS * np.maximum(np.abs(highest), np.abs(lowest))
    largest = np.max(np.abs(centred), axis=-1, keepdims=True, initial=0.0)
    scaled = centred / np.where(differs, largest, 1.0)  # or the square of a tiny reward would be 0
    spread = largest * np.sqrt((scaled**2).sum(-1, keepdims=True) / count)
    return np.where(differs, centred, 0.0), np.where(differs, spread, 0.0)


def mean_difference(rewards: Any) -> np.ndarray:
    """r - mean of the group: `group_advantages(rewards, normalize=False)`."""
    return group_advantages(rewards, normalize=False)


def leave_one_out(rewards: Any) -> np.ndarray:
    """r - mean of the others of the group, which is n / (n - 1) times r - mean of all.

    Missing rewards are left out and get 0. One reward alone has nobody to be compared with: 0.

    Source: Ahmadian et al. 2024 (arXiv:2402.14740), section 2.2.
    """
    rewards = np.asarray(rewards, np.float64)
    count = np.isfinite(rewards).sum(-1, keepdims=True)
    return mean_difference(rewards) * count / np.maximum(count - 1, 1)


def plain_rewards(rewards: Any) -> np.ndarray:
    """The rewards themselves, compared with nothing; 0 where missing."""
    rewards = np.asarray(rewards, np.float64)
    return np.where(np.isfinite(rewards), rewards, 0.0)


def outcome(plays: Sequence[Play], advantages: Advantages) -> list[np.ndarray]:
    """Every token of a trajectory has the advantage of the trajectory's whole reward within its group.

    Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.2 (outcome supervision).
    """
    values = np.zeros(len(plays))
    for members in _groups(plays):
        values[members] = advantages(np.asarray([plays[i].reward - plays[i].penalties.sum() for i in members]))
    return [np.full(play.tokens, value) for play, value in zip(plays, values, strict=True)]


def batch_scaled(plays: Sequence[Play], advantages: Advantages) -> list[np.ndarray]:
    """`outcome`, divided by the standard deviation of all rewards of the update, whatever their group.

    For advantages that are not scaled already: `replace(grpo, advantages=mean_difference, credit=batch_scaled)`. A
    group whose rewards hardly differ then teaches little, where its own deviation would blow its differences up.
    Exactly 0 where all rewards of the update are equal.

    Source: Liu et al. 2025 (arXiv:2508.08221), mean of the group and standard deviation of the batch.
    """
    spread = centred_and_spread([play.reward - play.penalties.sum() for play in plays])[1].sum()
    return [value / (spread or 1.0) for value in outcome(plays, advantages)]


@dataclass(frozen=True)
class ProcessRewards:
    """Each turn's reward is compared with those of all turns of the group; a token has what follows.

    With r~ the compared rewards, a token of turn t has the advantage sum over k >= t of
    discount**(k - t) r~_k. A turn without a reward counts as 0, so use it where turns are rewarded.

    Source: Shao et al. 2024 (arXiv:2402.03300), section 4.1.3 (process supervision), for discount 1.
    """

    discount: float = 1.0

    def __post_init__(self) -> None:
        _check_discount(self.discount)

    def __call__(self, plays: Sequence[Play], advantages: Advantages) -> list[np.ndarray]:
        return _by_turn(plays, advantages, lambda rewards: rewards, lambda values: returns(values, self.discount))


@dataclass(frozen=True)
class ReturnsToGo:
    """Returns of the turns are compared with those of all turns of the group.

    The return of turn t is G_t = sum over k >= t of discount**(k - t) r_k; a token has the
    advantage of its turn's return.

    Source: Sutton and Barto 2018, equation 3.8, for the return; the comparison is that of `outcome`.
    """

    discount: float = 1.0

    def __post_init__(self) -> None:
        _check_discount(self.discount)

    def __call__(self, plays: Sequence[Play], advantages: Advantages) -> list[np.ndarray]:
        return _by_turn(plays, advantages, lambda rewards: returns(rewards, self.discount), lambda values: values)


def token_returns(plays: Sequence[Play], advantages: Advantages) -> list[np.ndarray]:
    """The trajectory's advantage less the penalties of this token and all later ones.

    Source: Hu et al. 2025 (arXiv:2501.03262), whose penalty is beta times k1.
    """
    free = [replace(play, penalties=np.zeros(play.tokens)) for play in plays]
    return [value - returns(play.penalties, 1.0) for value, play in zip(outcome(free, advantages), plays, strict=True)]


@dataclass(frozen=True)
class BatchNormalized:
    """Advantages less their mean over all sampled tokens of the update, divided by their std.

    Exactly 0 where all are equal.

    Source: Hu et al. 2025 (arXiv:2501.03262), global advantage normalisation.
    """

    credit: Credit = outcome

    def __call__(self, plays: Sequence[Play], advantages: Advantages) -> list[np.ndarray]:
        values = self.credit(plays, advantages)
        missing = [np.full(play.tokens, not math.isfinite(play.reward)) for play in plays]
        flat, left_out = (np.concatenate([np.zeros(0), *arrays]) for arrays in (values, missing))
        normed = group_advantages(np.where(left_out > 0, math.nan, flat))
        ends = np.cumsum([play.tokens for play in plays])
        return [normed[end - play.tokens : end] for end, play in zip(ends, plays, strict=True)]


@dataclass(frozen=True)
class OverlongPenalty:
    """What is added to the reward of a trajectory that sampled nearly or more than `max_tokens`.

    0 up to max_tokens - buffer_tokens sampled tokens, falling in a line to -penalty at max_tokens,
    and -penalty beyond.

    Source: Yu et al. 2025 (arXiv:2503.14476), equation 13, where max_tokens is 20,480 and
        buffer_tokens 4,096; there the penalty is 1.
    """

    max_tokens: int
    """Sampled tokens, over all turns."""
    buffer_tokens: int
    penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.buffer_tokens <= self.max_tokens:
            raise ConfigError(
                "OverlongPenalty needs buffer_tokens of at least 1 and at most max_tokens, "
                f"got buffer_tokens={self.buffer_tokens} and max_tokens={self.max_tokens}."
            )

    def __call__(self, trajectory: Trajectory) -> float:
        over = trajectory.num_sampled - (self.max_tokens - self.buffer_tokens)
        return -self.penalty * min(max(over / self.buffer_tokens, 0.0), 1.0)


def token_advantages(
    groups: Sequence[TrajectoryGroup],
    *,
    advantages: Advantages,
    credit: Credit = outcome,
    shaping: Shaping | None = None,
    penalties: Sequence[Sequence[np.ndarray | None]] | None = None,
) -> list[list[np.ndarray]]:
    """Advantages [sampled tokens] of every trajectory of every group; 0 where the reward is missing.

    Args:
        groups: Of one update.
        advantages: Compares rewards.
        credit: Says what is compared, and which tokens have it.
        shaping: What is added to a trajectory's reward, in its last turn.
        penalties: By group and trajectory [sampled tokens], or None for none of them.

    Raises:
        RewardError: a reward that counts, or what shaping makes of it, is no reward; see `rewards.finite`.
    """
    plays = [
        _play(number, trajectory, shaping, penalties[number][index] if penalties else None)
        for number, group in enumerate(groups)
        for index, trajectory in enumerate(group.trajectories)
    ]
    values = iter(credit(plays, advantages))
    return [[next(values) for _ in group.trajectories] for group in groups]


def returns(rewards: np.ndarray, discount: float) -> np.ndarray:
    """[n] -> [n]: each reward plus the discounted ones after it."""
    found, later = np.zeros(len(rewards)), 0.0
    for at in range(len(rewards) - 1, -1, -1):
        found[at] = later = rewards[at] + discount * later
    return found


def _play(group: int, trajectory: Trajectory, shaping: Shaping | None, penalties: np.ndarray | None) -> Play:
    """The rewards of the turns; what the trajectory's reward has beyond them counts in the last turn."""
    size, lengths = trajectory.num_sampled, [turn.num_sampled for turn in trajectory.turns] or [trajectory.num_sampled]
    reward = trajectory.reward
    if trajectory.scored:
        name = f"episode {trajectory.group_id}/{trajectory.episode}"
        added = finite(shaping(trajectory), f"{name} by its shaping") if shaping else 0.0
        reward = finite(reward + added, f"{name}, shaped" if shaping else name)
    rewards = np.asarray([turn.reward for turn in trajectory.turns] or [0.0], np.float64)
    rewards[-1] += reward - rewards.sum()
    if not math.isfinite(reward):
        rewards[:] = reward = math.nan
    turns = np.repeat(np.arange(len(lengths)), lengths if sum(lengths) == size else 0)
    return Play(group, reward, rewards, turns, np.zeros(size) if penalties is None else np.asarray(penalties))


def _groups(plays: Sequence[Play]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for index, play in enumerate(plays):
        found.setdefault(play.group, []).append(index)
    return list(found.values())


def _by_turn(
    plays: Sequence[Play],
    advantages: Advantages,
    before: Callable[[np.ndarray], np.ndarray],
    after: Callable[[np.ndarray], np.ndarray],
) -> list[np.ndarray]:
    """Compare `before(rewards of the turns)` within each group; tokens have `after` of it, by turn."""
    found = [np.zeros(len(play.turns)) for play in plays]
    for members in _groups(plays):
        values = [before(_less_penalties(plays[i])) for i in members]
        compared = advantages(np.concatenate(values))
        for i, part in zip(members, np.split(compared, np.cumsum([len(v) for v in values])[:-1]), strict=True):
            found[i] = after(part)[plays[i].turns]
    return found


def _less_penalties(play: Play) -> np.ndarray:
    if len(play.turns) != play.tokens:
        raise ValueError(
            "Rewards by turn need trajectories whose turns say how many tokens each has sampled (num_sampled), "
            f"{play.tokens} in all; use the credit `outcome` for those that do not."
        )
    return play.turn_rewards - np.bincount(play.turns, play.penalties, minlength=len(play.turn_rewards))


def _check_discount(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount must lie in [0, 1], got {discount}.")
