"""Tasks drawn from a seed; held-out ones never occur in training."""

from agentlab.tasks.base import DrawnTasks
from agentlab.tasks.lake import frozen_lake
from agentlab.tasks.numbers import arithmetic
from agentlab.tasks.shop import prices

__all__ = ["DrawnTasks", "arithmetic", "frozen_lake", "prices"]
