"""The machine under us: what it is, what is installed on it, where caches lie, what gets compiled."""

from agentlab.platform.detect import Device, Platform, detect, probe_devices
from agentlab.platform.placement import Plan, plan

__all__ = ["Device", "Plan", "Platform", "detect", "plan", "probe_devices"]
