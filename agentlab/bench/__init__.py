"""Measurements that hold a figure against a goal: `python -m agentlab.bench NAME --json FILE`."""

from agentlab.bench.contract import Row

__all__ = ["Row"]
