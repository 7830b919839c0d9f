"""Every error that agentlab raises on purpose.

AgentLabError
├── ConfigError            an option is unknown, impossible or contradicts another
├── ModelError             a model cannot be found, read or trusted
├── RunError               a run cannot start, or ended because something in it died
│   ├── RunActiveError     another run lives in this process
│   ├── RunEnded           the run has ended and can no longer be asked
│   ├── EngineError        the inference engine died
│   ├── LearnerError       the trainer died
│   └── CheckpointError    a checkpoint could not be written
└── EpisodeError           one episode failed; typed by the boundary that was crossed
    ├── EnvironmentError_  reset, step or close of the environment
    ├── ToolError          a tool call
    ├── AgentError         the agent's update_from_model or update_from_env
    └── RewardError        the reward function
"""

import difflib
from collections.abc import Iterable


class AgentLabError(Exception):
    """Base of all errors that agentlab raises on purpose."""


class ConfigError(AgentLabError, ValueError):
    """An option is unknown, impossible, or contradicts another."""


class ModelError(AgentLabError):
    """A model cannot be found, read or trusted."""


class RunError(AgentLabError):
    """A run cannot start, or ended because something in it died."""


class RunActiveError(RunError):
    """Another run lives in this process."""


class RunEnded(RunError):
    """The run has ended and can no longer be asked."""


class EngineError(RunError):
    """The inference engine died; every waiting request gets this error."""


class LearnerError(RunError):
    """The trainer died."""


class CheckpointError(RunError):
    """A checkpoint could not be written; those before it are still there."""


class EpisodeError(AgentLabError):
    """One episode failed. It is data for the run (see `types.Failure`), not a crash."""


class EnvironmentError_(EpisodeError):
    """The environment failed in reset, step or close."""


class ToolError(EpisodeError):
    """A tool call failed; its text is what the model reads as the observation."""


class AgentError(EpisodeError):
    """The agent failed while it took in a response or an observation."""


class RewardError(EpisodeError):
    """The reward function raised or returned something that is not a finite number."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of a sentence that refuses a name: the nearest valid one, and all of them."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"{hint} Valid names: {', '.join(names)}."
