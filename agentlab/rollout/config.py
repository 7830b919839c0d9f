"""How episodes are run, and how far they may run ahead of the learner."""

from agentlab.errors import ConfigError
from agentlab.types import config


@config
class RolloutConfig:
    """How episodes are run, and how far they may run ahead of the learner."""

    group_size: int = 8
    """Episodes of one task; their rewards are compared with each other."""
    groups_per_step: int = 4
    """Groups the learner consumes in one update."""
    max_concurrency: int = 64
    """Episodes in flight at once."""
    max_off_policy_steps: int = 1
    """Updates by which a trajectory may be older than the weights it trains; 0 is synchronous."""
    max_turns: int = 16
    """Model calls after which an episode is cut; an environment may end it earlier."""
    max_tokens: int = 256
    """Tokens one model call may sample."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    stop: tuple[str, ...] = ()
    """Strings that end a model call, in addition to the model's end-of-turn token."""
    seed: int = 0
    """With the same tasks and policy, the same seed gives the same trajectories."""
    reset_timeout_s: float = 60.0
    model_timeout_s: float = 600.0
    step_timeout_s: float = 60.0
    close_timeout_s: float = 10.0
    episode_timeout_s: float = 1200.0
    """Seconds after which the whole episode is cut; it then has no reward and is left out."""
    max_workers: int = 128
    """Threads for synchronous environments, tools and rewards."""
    max_failed_groups: int = 16
    """Groups that may fail before the run ends with a report."""
    stall_after_s: float = 120.0
    """Seconds without a finished model call or step after which the snapshot says who waits for whom."""

    def __post_init__(self) -> None:
        at_least_one = ("group_size", "groups_per_step", "max_concurrency", "max_turns", "max_tokens", "max_workers")
        for name in at_least_one:
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 1):
                raise ConfigError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}.")
        for name in ("max_off_policy_steps", "max_failed_groups", "top_k"):
            if not (isinstance(getattr(self, name), int) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} must be a whole number of at least 0, got {getattr(self, name)!r}.")
        for name in (n for n in self.__dataclass_fields__ if n.endswith(("timeout_s", "after_s"))):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {getattr(self, name)!r}.")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be 0 or more, got {self.temperature!r}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p!r}.")
