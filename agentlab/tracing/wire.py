"""Bytes of Perfetto's packets: what repeats is serialized once by protobuf, what differs is put beside it by hand.

The bytes of a message are those of its fields, one after the other: a key and a value, before which
stands its length where it is a text or a message. So a message is put together from serialized parts.
Source: protobuf.dev, "Encoding".
"""

import struct
from functools import lru_cache
from types import ModuleType
from typing import Any

from agentlab.files import shown

_SEQUENCE = 1
_VARINT, _SIZED, _EIGHT_BYTES = 0, 2, 1
_MOST = 2**64 - 1
_KEPT = 16_384
"""Parts kept of each kind; beyond, those that were not used for longest are made again."""
_ONE = tuple(bytes((n,)) for n in range(0x80))
_LAST_TWO = tuple(bytes((n & 0x7F | 0x80, n >> 7)) for n in range(1 << 14))
_TWO = tuple(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(1 << 14))
_double = struct.Struct("<d").pack


def varint(number: int) -> bytes:
    """A number in 7 bits a byte, the lowest first; two bytes at a time.

    Raises:
        ValueError: it is negative.
    """
    parts = b""
    while number >= 1 << 14:
        parts += _TWO[number & 0x3FFF]
        number >>= 14
    if number >= 0x80:
        return parts + _LAST_TWO[number]
    if number < 0:
        raise ValueError(f"A trace's numbers must be 0 or more, got {number}.")
    return parts + _ONE[number]


class Wire:
    """Makes packets; owned by one thread.

    Args:
        proto: The module `perfetto_trace_pb2`, whose messages say what the fields' numbers are.
    """

    def __init__(self, proto: ModuleType):
        self._proto = proto
        self.types = proto.TrackEvent.Type
        """The kinds of events."""
        self._packet = _key(proto.Trace, "packet", _SIZED)
        self._time = _key(proto.TracePacket, "timestamp", _VARINT)
        self._event = proto.TracePacket(trusted_packet_sequence_id=_SEQUENCE).SerializeToString() + _key(
            proto.TracePacket, "track_event", _SIZED
        )
        self._annotation = _key(proto.TrackEvent, "debug_annotations", _SIZED)
        self._value = _key(proto.TrackEvent, "double_counter_value", _EIGHT_BYTES)
        kinds = {"bool_value": _VARINT, "int_value": _VARINT, "double_value": _EIGHT_BYTES, "string_value": _SIZED}
        keys = [_key(proto.DebugAnnotation, name, kind) for name, kind in kinds.items()]
        self._bool, self._int, self._double, self._string = keys
        self.part = lru_cache(_KEPT)(self._part)
        self._named = lru_cache(_KEPT)(self._name)

    def descriptor(self, time_ns: int | None = None, **fields: Any) -> bytes:
        """The packet that describes a track."""
        times = {} if time_ns is None else {"timestamp": time_ns}
        packet = self._proto.TracePacket(trusted_packet_sequence_id=_SEQUENCE, track_descriptor=fields, **times)
        return self._proto.Trace(packet=[packet]).SerializeToString()

    def event(self, time_ns: int, event: bytes) -> bytes:
        """The packet of an event, which is made of parts."""
        body = self._time + varint(time_ns) + self._event + varint(len(event)) + event
        return self._packet + varint(len(body)) + body

    def value(self, value: float) -> bytes:
        """The part of an event that is a counter's value."""
        return self._value + _double(value)

    def annotation(self, name: str, value: Any) -> bytes:
        """The part of an event that is a tag."""
        if isinstance(value, bool):
            mine = self._bool + _ONE[value]
        elif isinstance(value, int) and -(2**63) <= value < 2**63:
            mine = self._int + varint(value & _MOST)
        elif isinstance(value, float):
            mine = self._double + _double(value)
        else:
            text = shown(value, str).encode()
            mine = self._string + varint(len(text)) + text
        body = self._named(name) + mine
        return self._annotation + varint(len(body)) + body

    def _part(self, **fields: Any) -> bytes:
        """A part of an event with these fields; a tuple is a repeated one."""
        return self._proto.TrackEvent(**fields).SerializeToString()

    def _name(self, name: str) -> bytes:
        return self._proto.DebugAnnotation(name=name).SerializeToString()


def _key(message: Any, field: str, kind: int) -> bytes:
    return varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | kind)
