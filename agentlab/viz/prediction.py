"""What a change of settings would bring, computed from a run's own trace."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agentlab.tracing import Account
from agentlab.viz.replay import Replayed, replay
from agentlab.viz.workload import Workload

_FACTORS = (1.5, 2, 3, 4, 6, 8)
_LEADS = (1, 2, 4)
_CLOSE = 0.03
"""Of two changes that differ by less than this share of the time, the smaller is advised."""
_WORTH = 0.95
"""A change is told when the time per update falls below this share of what it is."""
_FAITHFUL = 0.10
"""Most by which replayed and measured utilisation of the run as it is may differ for predictions to be made."""


@dataclass(frozen=True)
class Prediction:
    """What would happen under other settings."""

    settings: Mapping[str, tuple[int, int]]
    """By option: (now, then)."""
    idle_now: float
    """Measured share of the time in which the device is idle."""
    idle: float
    """Predicted share."""
    speedup: float
    """Predicted updates per second over those of now."""

    def __str__(self) -> str:
        changes = ", ".join(f"{name} {now} -> {then}" for name, (now, then) in self.settings.items())
        return f"{changes}: idle {self.idle_now:.0%} -> {self.idle:.0%}, {self.speedup:.1f} times as fast"


@dataclass(frozen=True)
class Outlook:
    """The changes worth making, best last, and the most that asynchrony can reach with this engine and learner."""

    changes: tuple[Prediction, ...]
    ceiling: Prediction


def outlook(load: Workload, found: Account) -> Outlook | str:
    """Predict what more episodes and a longer lead would bring; or say why that cannot be told."""
    now = replay(load)
    if abs(now.utilisation - found.utilisation) > _FAITHFUL:
        return (
            f"replaying the trace as it is gives a device that is busy {now.utilisation:.0%} of the time, "
            f"but it was {found.utilisation:.0%}"
        )
    judge = _Judge(load, found, now)
    places = judge.best(_more_places(load, factor) for factor in _FACTORS)
    lead = judge.best(_more_lead(load, more) for more in _LEADS)
    both = judge.best(_more_places(_more_lead(load, more), factor) for more in _LEADS for factor in _FACTORS)
    chosen: list[Prediction] = []
    for one in sorted(filter(None, (places, lead, both)), key=lambda p: (p.speedup, -len(p.settings))):
        if not chosen or one.speedup > chosen[-1].speedup * (1 + _CLOSE):
            chosen.append(one)
    return Outlook(tuple(chosen), judge.predict(_more_places(_more_lead(load, 8), 16)))


class _Judge:
    """Compares replays with the run as it is."""

    def __init__(self, load: Workload, found: Account, now: Replayed):
        self._load, self._now = load, now
        self._idle = 1 - found.utilisation
        self._shift = found.utilisation - now.utilisation

    def predict(self, load: Workload) -> Prediction:
        then = replay(load)
        names = [name for name in _OPTIONS if getattr(load, name) != getattr(self._load, name)]
        settings = {name: (getattr(self._load, name), getattr(load, name)) for name in names}
        idle = min(1.0, max(0.0, 1 - then.utilisation - self._shift))
        return Prediction(settings, self._idle, idle, self._now.update_s / then.update_s)

    def best(self, loads: Iterable[Workload]) -> Prediction | None:
        """The smallest change that is close to the fastest, if it is worth telling."""
        found = [self.predict(load) for load in loads]
        fastest = max(one.speedup for one in found)
        one = next(one for one in found if one.speedup >= fastest * (1 - _CLOSE))
        return one if one.speedup * _WORTH >= 1 else None


_OPTIONS = ("max_concurrency", "max_off_policy_steps", "num_slots")


def _more_places(load: Workload, factor: float) -> Workload:
    """More episodes at once; the engine has as many slots more where it had one for each."""
    places = round(load.max_concurrency * factor)
    slots = places if load.num_slots == load.max_concurrency else load.num_slots
    return replace(load, max_concurrency=places, num_slots=slots)


def _more_lead(load: Workload, more: int) -> Workload:
    return replace(load, max_off_policy_steps=load.max_off_policy_steps + more)
