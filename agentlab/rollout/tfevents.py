"""TensorBoard's event files, written by hand: a record is a length, a message and their checksums.

Source: tensorflow/core/lib/io/record_writer.cc for the framing, tensorflow/core/util/event.proto and
tensorflow/core/framework/summary.proto for the messages.
"""

import math
import struct
from collections.abc import Mapping

from agentlab.files import escaped

POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected. Source: RFC 3720, appendix B.4."""
LARGEST = 3.4028234e38
"""Of a float of 32 bits."""
START = 1
"""SessionLog.START: readers drop events of this and later steps that they have seen before."""


def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


TABLE = _table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    """The checksum as it stands in a record."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(message: bytes) -> bytes:
    """A message with its frame."""
    length = struct.pack("<Q", len(message))
    return length + masked(length) + message + masked(message)


def file_header(time_s: float, *, first_step: int) -> bytes:
    """What an event file begins with."""
    version = event(time_s, 0, text(3, b"brain.Event:2"))
    return record(version) + record(event(time_s, first_step, text(7, number(1, START))))


def scalars_record(time_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """One event with a scalar of each name."""
    summary = b"".join(
        text(1, text(1, escaped(name).encode()) + tag(2, 5) + struct.pack("<f", single(value)))
        for name, value in values.items()
    )
    return record(event(time_s, step, text(5, summary)))


def single(value: float) -> float:
    """The value as far as a float of 32 bits goes; infinite beyond."""
    return math.copysign(math.inf, value) if abs(value) > LARGEST else value


def event(time_s: float, step: int, what: bytes) -> bytes:
    """The message Event: wall_time = 1, step = 2, what happened."""
    return tag(1, 1) + struct.pack("<d", time_s) + number(2, step) + what


def tag(field: int, kind: int) -> bytes:
    """The key of a field."""
    return varint(field << 3 | kind)


def number(field: int, value: int) -> bytes:
    """A whole number."""
    return tag(field, 0) + varint(value)


def text(field: int, data: bytes) -> bytes:
    """Bytes, text or a message."""
    return tag(field, 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A whole number of at least 0, seven bits a byte."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
