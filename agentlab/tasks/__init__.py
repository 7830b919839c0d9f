"""Tasks drawn from a seed; held-out ones never occur in training."""

from agentlab.tasks.base import DrawnTasks
from agentlab.tasks.games import countdown, guess_number
from agentlab.tasks.lake import frozen_lake
from agentlab.tasks.numbers import arithmetic
from agentlab.tasks.reasoning import reasoning
from agentlab.tasks.shell import terminal
from agentlab.tasks.shop import prices

__all__ = ["DrawnTasks", "arithmetic", "countdown", "frozen_lake", "guess_number", "prices", "reasoning", "terminal"]
