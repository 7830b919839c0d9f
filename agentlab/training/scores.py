"""What an update made of single tokens: advantage and log-probability of each, for people who look at episodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentlab.training.packing import Packed
from agentlab.types import TokenScores, TrainedGroup, TrajectoryGroup

KEPT_GROUPS = 8
"""Groups of an update that are told of: the last ones. All of a large batch would be looked at by nobody."""


def trained_groups(
    groups: Sequence[TrajectoryGroup],
    packed: Packed,
    logprobs: Sequence[Any],
    version: int,
    *,
    keep: int = KEPT_GROUPS,
) -> tuple[TrainedGroup, ...]:
    """The last groups of an update with the scores of their tokens.

    Args:
        groups: Of the update.
        packed: Their micro-batches.
        logprobs: By micro-batch, [B * T] in the order of its targets, under the weights that the update
            began with.
        version: Of those weights.
        keep: How many groups.
    """
    found = _by_sequence(packed, logprobs)
    scores = {packed.sequences[sequence]: score for sequence, score in found.items()}
    first = max(0, len(groups) - keep)
    return tuple(
        TrainedGroup(group, version, tuple(scores.get((number, index)) for index in range(len(group.trajectories))))
        for number, group in enumerate(groups[first:], first)
    )


def _by_sequence(packed: Packed, logprobs: Sequence[Any]) -> dict[int, TokenScores]:
    if not packed.batches:
        return {}
    targets = [batch.targets for batch in packed.batches]
    sequence, place, advantage = (
        np.concatenate([getattr(target, name) for target in targets]) for name in ("sequence", "place", "advantage")
    )
    logprob = np.concatenate([np.asarray(one) for one in logprobs])
    order = np.lexsort((place, sequence))
    order = order[sequence[order] >= 0]
    numbers, starts = np.unique(sequence[order], return_index=True)
    return {
        int(number): TokenScores(tuple(advantage[part].tolist()), tuple(logprob[part].tolist()))
        for number, part in zip(numbers, np.split(order, starts[1:]), strict=True)
    }
