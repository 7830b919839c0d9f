"""Environments: one episode of one task each; `reset`, `step`, `close`, sync or async."""

from agentlab.environments.base import BaseTaskEnv

__all__ = ["BaseTaskEnv"]
