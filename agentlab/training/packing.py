"""Packing: groups of trajectories become micro-batches of rows [B, T], a group's prompt stored once per row."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from agentlab.errors import ConfigError
from agentlab.tracing import span
from agentlab.training.advantages import Advantages, Credit, Shaping, group_advantages, outcome, token_advantages
from agentlab.training.algorithms import Aggregate, token_mean
from agentlab.types import TokenRow, Trajectory, TrajectoryGroup

SHORTEST_ROW = 64
"""Tokens of the shortest row that is ever compiled."""


class Targets(NamedTuple):
    """The sampled tokens of a micro-batch, one entry each; every array is [B * T], the rest is empty.

    The loss needs vocabulary logits at these places only.
    """

    index: np.ndarray
    """int32; which of the B * T hidden states predicts the token."""
    token: np.ndarray
    """int32; the sampled token."""
    logprob: np.ndarray
    """float32; under the weights and at the temperature that sampled it."""
    advantage: np.ndarray
    """float32; of the token: that of its trajectory, or of its turn."""
    weight: np.ndarray
    """float32; its share of the loss of the whole update."""
    version: np.ndarray
    """int32; of the policy that sampled it."""
    sequence: np.ndarray
    """int32; number of its trajectory in the update; -1 marks the empty entries."""
    row: np.ndarray
    """int32; number of its token row in the micro-batch."""
    place: np.ndarray
    """int32; how many tokens of its trajectory were sampled before it."""


class MicroBatch(NamedTuple):
    """Rows that are computed together; tokens, positions, segments and prefixes are int32 [B, T].

    A token sees the earlier positions of its own segment and of its prefix, another segment of
    the same row. With one group in a row the prompt is segment 0, its members are 1, 2, …
    """

    tokens: np.ndarray
    positions: np.ndarray
    """Place of the token in its own trajectory: a member's go on where its prompt ends."""
    segments: np.ndarray
    """-1 is padding."""
    prefixes: np.ndarray
    """The segment that this token's segment continues; its own where it continues none."""
    targets: Targets

    @property
    def shape(self) -> tuple[int, int]:
        rows, length = self.tokens.shape
        return rows, length


@dataclass(frozen=True, kw_only=True)
class PackCounts:
    """What became of the groups that were packed."""

    groups: int = 0
    skipped_groups: int = 0
    """Groups that teach nothing: every advantage is 0."""
    trajectories: int = 0
    """Trajectories that count in the loss, those of skipped groups included."""
    unscored: int = 0
    """Trajectories left out because their reward is missing."""
    unsampled: int = 0
    """Trajectories left out because the policy sampled no token of them."""
    sampled_tokens: int = 0
    """Sampled tokens that are trained on."""
    weighted_tokens: float = 0.0
    """The sum of their own weights: as many as there are, where every one counts 1."""
    tokens: int = 0
    """Places of the rows that hold a token."""
    places: int = 0
    """Places of the rows, padding included."""
    unpacked_tokens: int = 0
    """Tokens that the same trajectories have when each carries its own prompt."""

    @property
    def padding_share(self) -> float:
        return 1.0 - self.tokens / self.places if self.places else 0.0


@dataclass(frozen=True)
class Packed:
    """One update's micro-batches."""

    batches: tuple[MicroBatch, ...]
    counts: PackCounts
    sequences: tuple[tuple[int, int], ...] = ()
    """(number of the group, number in the group) of each trajectory that counts, as `Targets.sequence` has it."""


@dataclass(frozen=True, eq=False)
class Member:
    """One token row of one trajectory, with what its sampled tokens weigh in the loss."""

    row: TokenRow
    sequence: int
    first: int
    """Tokens of its trajectory that were sampled in rows before."""
    advantages: np.ndarray
    """[sampled tokens of the row]"""
    weight: float = 0.0
    """Of each of its tokens in the loss, times that of the token itself (`TokenRow.weights`)."""

    @property
    def length(self) -> int:
        """Tokens that must be computed: those before the last sampled one."""
        return len(self.row.loss_mask) - 1 - self.row.loss_mask[::-1].index(1)


@dataclass(frozen=True, eq=False)
class Bundle:
    """Members that share a prefix: what is placed in one row as a whole."""

    prefix: int
    """Tokens at the start of every member that are the same and stored once."""
    members: tuple[Member, ...]

    @property
    def tokens(self) -> int:
        """Tokens that must be computed."""
        return self.prefix + sum(member.length - self.prefix for member in self.members)

    @property
    def size(self) -> int:
        """Places of a row that it takes: enough for its tokens, and for its targets, of which the
        prefix may predict several with one token."""
        return max(self.tokens, sum(sum(member.row.loss_mask) for member in self.members))


@dataclass(eq=False)
class OpenRow:
    """A row that is being filled. Owned by the thread that packs."""

    capacity: int
    used: int = 0
    bundles: list[Bundle] = field(default_factory=list)

    def add(self, bundle: Bundle) -> None:
        self.bundles.append(bundle)
        self.used += bundle.size


def pack(
    groups: Sequence[TrajectoryGroup],
    *,
    advantages: Advantages = group_advantages,
    aggregate: Aggregate = token_mean,
    credit: Credit = outcome,
    shaping: Shaping | None = None,
    row_tokens: int = 512,
    micro_batch_tokens: int = 512,
    share_prefix: bool = True,
    keep_equal_groups: bool = False,
    pad_to_longest: bool = False,
) -> Packed:
    """Pack groups into micro-batches whose shapes come from a small set.

    A group's common prompt is stored and computed once per row; a group that does not fit into a
    row is split, each part with its own copy of the prompt. Rows hold `row_tokens`, or more where
    one trajectory alone is longer.

    Args:
        groups: Finished groups. A trajectory without reward or sampled tokens is left out and counted.
        advantages: Rewards [group_size] to advantages [group_size].
        aggregate: Sampled tokens per trajectory to the weight of each of its tokens, over the whole update. A
            token that has a weight of its own (`TokenRow.weights`) counts as so many.
        credit: Says which rewards are compared, and which tokens have the advantages.
        shaping: What is added to a trajectory's reward.
        row_tokens: Tokens that a row is filled up to.
        micro_batch_tokens: Most tokens of rows that are computed together, padding included.
        share_prefix: False stores every trajectory whole, in a segment of its own.
        keep_equal_groups: Keep groups whose advantages are all 0 (a divergence term still teaches).
        pad_to_longest: Do not pack: give every token row a row of its own, all as long as the longest.
            What packing is measured against.

    Raises:
        ConfigError: micro_batch_tokens is less than row_tokens, or row_tokens less than SHORTEST_ROW.
        ValueError: a trajectory's first token is a sampled one, so that nothing predicts it.
    """
    _check_sizes(row_tokens, micro_batch_tokens)
    with span("advantage", groups=len(groups)):
        values = token_advantages(groups, advantages=advantages, credit=credit, shaping=shaping)
    with span("pack", groups=len(groups)):
        members, sequences, left_out = _members(groups, values, aggregate)
        kept = [m for m in members if m and (keep_equal_groups or any(x.advantages.any() for x in m))]
        bundles = [] if pad_to_longest else [bundle for m in kept for bundle in _bundles(m, share_prefix)]
        rows = _one_row_each([x for m in kept for x in m]) if pad_to_longest else _fill(bundles, row_tokens)
        batches = tuple(_batches(rows, micro_batch_tokens))
    return Packed(
        batches,
        PackCounts(
            **left_out,
            groups=len(groups),
            trajectories=len(sequences),
            skipped_groups=len(groups) - len(kept),
            **_sizes([x for m in kept for x in m]),
            tokens=sum(bundle.tokens for row in rows for bundle in row.bundles),
            places=sum(batch.tokens.size for batch in batches),
        ),
        tuple(sequences),
    )


def _check_sizes(row_tokens: int, micro_batch_tokens: int) -> None:
    if not SHORTEST_ROW <= row_tokens <= micro_batch_tokens:
        raise ConfigError(
            f"row_tokens must be at least {SHORTEST_ROW} and at most micro_batch_tokens, "
            f"got row_tokens={row_tokens} and micro_batch_tokens={micro_batch_tokens}."
        )


def with_advantages(packed: Packed, values: Sequence[Sequence[np.ndarray]]) -> Packed:
    """The same batches with other advantages.

    Args:
        packed: Of some groups.
        values: Advantages [sampled tokens] by group and trajectory, as `token_advantages` gives them.
    """
    by_sequence = [values[group][index] for group, index in packed.sequences]
    batches = []
    for batch in packed.batches:
        targets, advantage = batch.targets, np.zeros_like(batch.targets.advantage)
        for entry in np.flatnonzero(targets.sequence >= 0):
            advantage[entry] = by_sequence[targets.sequence[entry]][targets.place[entry]]
        batches.append(batch._replace(targets=targets._replace(advantage=advantage)))
    return replace(packed, batches=tuple(batches))


def declared_shapes(row_tokens: int, micro_batch_tokens: int) -> frozenset[tuple[int, int]]:
    """All shapes [B, T] of micro-batches that trajectories of at most `row_tokens` tokens can make.

    Trajectories of more tokens than that add shapes of their own `row_length`.
    """
    longest, shapes, length = row_length(row_tokens), set(), SHORTEST_ROW
    while length <= longest:
        most = max(micro_batch_tokens // length, 1)
        shapes |= {(1 << power, length) for power in range(most.bit_length())}
        length = row_length(length + 1)
    return frozenset(shapes)


def row_length(tokens: int) -> int:
    """The shortest declared row that holds so many tokens: 64, 96, 128, 192, 256, 384, …"""
    length = SHORTEST_ROW
    while length < tokens:
        length = length // 2 * 3 if length & (length - 1) == 0 else length // 3 * 4
    return length


def _members(
    groups: Sequence[TrajectoryGroup], values: Sequence[Sequence[np.ndarray]], aggregate: Aggregate
) -> tuple[list[list[Member]], list[tuple[int, int]], dict[str, int]]:
    """The token rows that count, by group, weighed over the whole update; whose they are; what was left out."""
    found: list[list[Member]] = []
    sequences: list[tuple[int, int]] = []
    lengths: list[float] = []
    unscored = unsampled = 0
    for number, group in enumerate(groups):
        found.append([])
        for index, trajectory in enumerate(group.trajectories):
            if not trajectory.scored:
                unscored += 1
            elif trajectory.num_sampled == 0:
                unsampled += 1
            else:
                found[-1] += _rows(trajectory, len(sequences), values[number][index])
                sequences.append((number, index))
                lengths.append(sum(map(_weighed, trajectory.rows)))
    weights = aggregate(np.asarray(lengths))
    weighed = [[replace(m, weight=float(weights[m.sequence])) for m in group] for group in found]
    return weighed, sequences, {"unscored": unscored, "unsampled": unsampled}


def _rows(trajectory: Trajectory, sequence: int, advantages: np.ndarray) -> Iterator[Member]:
    first = 0
    for row in trajectory.rows:
        if 1 in row.loss_mask:
            last = first + sum(row.loss_mask)
            yield Member(_checked(row, trajectory.group_id), sequence, first, advantages[first:last])
            first = last


def _sizes(members: Sequence[Member]) -> dict[str, Any]:
    return {
        "sampled_tokens": sum(sum(member.row.loss_mask) for member in members),
        "weighted_tokens": float(sum(_weighed(member.row) for member in members)),
        "unpacked_tokens": sum(member.length for member in members),
    }


def _weighed(row: TokenRow) -> float:
    """Its sampled tokens, each counted as what it weighs."""
    return sum(row.weights) if row.weights else sum(row.loss_mask)


def _checked(row: TokenRow, group_id: str) -> TokenRow:
    if row.loss_mask[0]:
        raise ValueError(
            f"The first token of a trajectory of group {group_id!r} is marked as sampled, but nothing "
            "comes before it that could predict it. Begin every trajectory with its prompt."
        )
    return row


def _bundles(members: Sequence[Member], share_prefix: bool) -> list[Bundle]:
    if not share_prefix:
        return [Bundle(0, (member,)) for member in members]
    return [Bundle(_shared_prefix([m.row for m in members]) if len(members) > 1 else 0, tuple(members))]


def _shared_prefix(rows: Sequence[TokenRow]) -> int:
    """Tokens at the start that all rows have in common, none of them sampled."""
    limit = min(row.prompt_length for row in rows)
    stacked = np.asarray([row.tokens[:limit] for row in rows])
    differs = (stacked != stacked[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else limit


def _fill(bundles: Iterable[Bundle], row_tokens: int) -> list[OpenRow]:
    """Place the bundles, longest first, each in the fullest row that takes it; split those longer than a row."""
    parts = [part for bundle in bundles for part in _split(bundle, row_tokens)]
    rows: list[OpenRow] = []
    for part in sorted(parts, key=lambda part: -part.size):
        fitting = [row for row in rows if row.used + part.size <= row.capacity]
        row = max(fitting, key=lambda row: row.used, default=None)
        if row is None:
            row = OpenRow(max(row_tokens, part.size))
            rows.append(row)
        row.add(part)
    return rows


def _one_row_each(members: Sequence[Member]) -> list[OpenRow]:
    longest = max((Bundle(0, (member,)).size for member in members), default=0)
    return [OpenRow(longest, longest, [Bundle(0, (member,))]) for member in members]


def _split(bundle: Bundle, row_tokens: int) -> Iterator[Bundle]:
    """Parts of at most `row_tokens`; a member that is longer alone becomes a part of its own."""
    part: tuple[Member, ...] = ()
    for member in sorted(bundle.members, key=lambda member: -member.length):
        if part and Bundle(bundle.prefix, (*part, member)).size > row_tokens:
            yield Bundle(bundle.prefix, part)
            part = ()
        part = (*part, member)
    yield Bundle(bundle.prefix, part)


def _batches(rows: Sequence[OpenRow], micro_batch_tokens: int) -> Iterator[MicroBatch]:
    """Rows of the same declared length together; the last batch of a length has 1, 2, 4, … rows."""
    by_length: Mapping[int, list[OpenRow]] = {}
    for row in rows:
        by_length.setdefault(row_length(row.used), []).append(row)
    for length, same in sorted(by_length.items()):
        most = 1 << (max(micro_batch_tokens // length, 1).bit_length() - 1)
        for start in range(0, len(same), most):
            part = same[start : start + most]
            yield _micro_batch(part, 1 << (len(part) - 1).bit_length(), length)


def _micro_batch(rows: Sequence[OpenRow], num_rows: int, length: int) -> MicroBatch:
    tokens, positions = np.zeros((2, num_rows, length), np.int32)
    segments, prefixes = np.full((2, num_rows, length), -1, np.int32)
    targets: list[tuple[int | float, ...]] = []
    token_rows = itertools.count()
    for number, row in enumerate(rows):
        place = segment = 0
        for bundle in row.bundles:
            shared = slice(place, place + bundle.prefix)
            first = segment
            if bundle.prefix:
                tokens[number, shared] = bundle.members[0].row.tokens[: bundle.prefix]
                positions[number, shared] = np.arange(bundle.prefix)
                segments[number, shared] = prefixes[number, shared] = segment
                place, segment = shared.stop, segment + 1
            for member in bundle.members:
                own = slice(place, place + member.length - bundle.prefix)
                tokens[number, own] = member.row.tokens[bundle.prefix : member.length]
                positions[number, own] = np.arange(bundle.prefix, member.length)
                segments[number, own] = segment
                prefixes[number, own] = first if bundle.prefix else segment
                places = number * length + shared.start, number * length + place
                targets += _targets(member, bundle.prefix, *places, next(token_rows))
                place, segment = own.stop, segment + 1
    return MicroBatch(tokens, positions, segments, prefixes, _columns(targets, num_rows * length))


def _targets(
    member: Member, prefix: int, prefix_place: int, own_place: int, token_row: int
) -> Iterator[tuple[int | float, ...]]:
    """The fields of `Targets` for each sampled token of one member."""
    row = member.row
    sampled = [at for at, mask in enumerate(row.loss_mask) if mask]
    for number, (at, advantage) in enumerate(zip(sampled, member.advantages, strict=True)):
        before = at - 1
        yield (
            prefix_place + before if before < prefix else own_place + before - prefix,
            row.tokens[at],
            row.logprobs[at],
            advantage,
            member.weight * row.weights[at] if row.weights else member.weight,
            row.policy_versions[at],
            member.sequence,
            token_row,
            member.first + number,
        )


def _columns(targets: Sequence[tuple[int | float, ...]], size: int) -> Targets:
    kinds = (np.int32, np.int32, *[np.float32] * 3, *[np.int32] * 4)
    columns = [np.zeros(size, kind) for kind in kinds]
    for column, values in zip(columns, zip(*targets, strict=True), strict=bool(targets)):
        column[: len(targets)] = values
    columns[Targets._fields.index("sequence")][len(targets) :] = -1
    return Targets(*columns)
