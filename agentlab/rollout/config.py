"""How episodes are run, and how far they may run ahead of the learner."""

from dataclasses import field

from agentlab.errors import ConfigError
from agentlab.types import TruncationRule, config


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
    min_p: float = 0.0
    """Drops tokens less likely than this share of the likeliest one's probability; 0 drops none."""
    stop: tuple[str, ...] = ()
    """Strings that end a model call, in addition to the model's end-of-turn token."""
    template_options: dict = field(default_factory=dict, hash=False)
    """Variables of the model's chat template, e.g. {"enable_thinking": False} for Qwen 3."""
    seed: int = 0
    """With the same tasks and policy, the same seed gives the same trajectories."""
    reset_timeout_s: float = 60.0
    model_timeout_s: float = 600.0
    """For one model call. Time in which the engine compiles programs or starts a server does not count, here and in
    `episode_timeout_s`."""
    step_timeout_s: float = 60.0
    """For one step of the environment, tools and reward included, and for each call of the agent."""
    tool_timeout_s: float = 60.0
    """For one tool call within a step. The episode ends, since its environment is still inside the call; one
    wrapped in `al.tools.Timeout` tells the model instead, and the episode goes on."""
    reward_timeout_s: float = 60.0
    """For the reward function, within a step."""
    close_timeout_s: float = 10.0
    episode_timeout_s: float = 1200.0
    """Seconds after which the whole episode is cut."""
    on_max_tokens: TruncationRule = "train"
    """What becomes of an episode whose last model call was cut by `max_tokens`: "train" it with the
    reward it has, train it with "no_reward" (0), or "leave_out" of loss and group statistics."""
    on_context: TruncationRule = "train"
    """Likewise, when prompt and answers filled the context."""
    on_max_turns: TruncationRule = "train"
    """Likewise, when the turns were used up."""
    on_timeout: TruncationRule = "leave_out"
    """Likewise, when the whole episode's time was up: how long a tool took is not the policy's doing."""
    max_retries: int = 0
    """Times that a failed episode is played again, each in a fresh environment."""
    max_workers: int = 128
    """Threads for synchronous environments, tools and rewards."""
    max_failed_groups: int | float = 16
    """Groups that may fail before the run ends with a report; below 1 a share of those finished, from
    the 20th on."""
    filter_equal_rewards: bool = False
    """Drop groups whose rewards are all equal, and start others in their place (dynamic sampling; Yu
    et al. 2025, arXiv:2503.14476, section 3.2)."""
    max_filtered_in_a_row: int = 64
    """Groups filtered one after the other before the run ends with an error: nothing is left to learn."""
    extra_groups: int = 0
    """Groups started beyond what pacing asks for; those not needed are kept for the next update."""
    stall_after_s: float = 120.0
    """Seconds without a finished model call or step after which the snapshot says who waits for whom."""

    def __post_init__(self) -> None:
        sizes = ("group_size", "groups_per_step", "max_concurrency", "max_turns", "max_tokens", "max_workers")
        for name in (*sizes, "max_filtered_in_a_row"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)!r}.")
        if self.filter_equal_rewards and self.group_size == 1:
            raise ConfigError(
                "filter_equal_rewards needs group_size of at least 2: the rewards of one are always equal."
            )
        for name in ("max_off_policy_steps", "max_failed_groups", "top_k", "max_retries", "extra_groups"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must be at least 0, got {getattr(self, name)!r}.")
        for name in (n for n in self.__dataclass_fields__ if n.endswith(("timeout_s", "after_s"))):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be more than 0 seconds, got {getattr(self, name)!r}.")
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"temperature must be 0 or more, got {self.temperature!r}.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must lie in (0, 1], got {self.top_p!r}.")
        if not 0 <= self.min_p < 1:
            raise ConfigError(f"min_p must lie in [0, 1), got {self.min_p!r}.")
