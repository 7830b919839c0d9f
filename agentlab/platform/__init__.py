"""The machine under us: what it is, what is installed on it, where caches lie, what gets compiled."""

from agentlab.platform.detect import Device, Platform, detect, probe_devices

__all__ = ["Device", "Platform", "detect", "probe_devices"]
