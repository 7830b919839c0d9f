"""The container of a GGUF file: its metadata and where its tensors lie.

Source: the GGUF specification of the ggml project, version 3 (2 differs in nothing that is read here).
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from agentlab.errors import ModelError

SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "<b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
"""NumPy types of the metadata values, by GGUF's number."""
STRING, ARRAY = 8, 9
READABLE = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""Types of tensors that can be expanded."""
BLOCK_NUMBERS = 2**20
"""About how many numbers of a tensor are expanded at a time."""


@dataclass(frozen=True, eq=False)
class GGUFTensor:
    """One tensor as it is stored: quantised blocks that are expanded when they are read."""

    name: str
    path: Path
    shape: tuple[int, ...]
    """Row-major, as NumPy and Hugging Face say it."""
    kind: Any
    """The gguf library's quantisation type."""
    offset: int
    """Bytes from the beginning of the file."""

    @property
    def row_bytes(self) -> int:
        from gguf.constants import GGML_QUANT_SIZES

        block_size, block_bytes = GGML_QUANT_SIZES[self.kind]
        return self.shape[-1] // block_size * block_bytes * prod(self.shape[1:-1])

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(index of the first row, some rows in float32) from the first row to the last.

        Raises:
            ModelError: the file has become shorter since its header was read.
        """
        from gguf.quants import dequantize

        if len(self.shape) == 1:
            yield 0, dequantize(self._read(0, 1)[0], self.kind)
            return
        step = max(1, BLOCK_NUMBERS // prod(self.shape[1:]))
        for start in range(0, self.shape[0], step):
            rows = min(step, self.shape[0] - start)
            yield start, dequantize(self._read(start, rows), self.kind).reshape(rows, *self.shape[1:])

    def _read(self, start: int, rows: int) -> np.ndarray:
        with self.path.open("rb") as file:
            file.seek(self.offset + start * self.row_bytes)
            content = file.read(rows * self.row_bytes)
        if len(content) < rows * self.row_bytes:
            raise ModelError(
                f"{self.path} must be a complete GGUF file, and ends inside of the tensor {self.name}. "
                "Download it again."
            )
        return np.frombuffer(content, np.uint8).reshape(rows, -1)


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """What a GGUF file says: metadata by key, tensors by name."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    def need(self, key: str) -> Any:
        """A metadata value that must be there.

        Raises:
            ModelError: it is not.
        """
        if key not in self.metadata:
            raise ModelError(f"{self.path} must say {key!r} and does not. Download the file again, or convert it anew.")
        return self.metadata[key]


def read_gguf(path: Path) -> GGUFFile:
    """Read the header of a GGUF file; the weights are read when they are expanded.

    Raises:
        ModelError: it cannot be read, is no GGUF file, or is truncated.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Check the path and its permissions.") from error
    if content[:4] != b"GGUF":
        raise ModelError(f'{path} must begin with the letters "GGUF", got {content[:4]!r}. It is not a GGUF file.')
    try:
        return _parse(path, content)
    except (struct.error, ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise ModelError(
            f"{path} must be a complete GGUF file; at {len(content)} bytes it is truncated or damaged "
            f"({type(error).__name__}: {error}). Download it again."
        ) from error


class _Cursor:
    """A place in a mapped file that moves on with every value read. Owned by the reading call."""

    def __init__(self, content: mmap.mmap):
        self.content = content
        self.offset = 0

    def number(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self.content, self.offset)[0]
        self.offset += struct.calcsize("<" + code)
        return value

    def text(self) -> str:
        size = self.number("Q")
        raw = self.content[self.offset : self.offset + size]
        if len(raw) != size:
            raise ValueError(f"a text of {size} bytes at byte {self.offset} ends beyond the file")
        self.offset += size
        return raw.decode("utf-8")

    def array(self, dtype: str, count: int) -> np.ndarray:
        values = np.frombuffer(self.content, dtype, count, self.offset)
        self.offset += values.nbytes
        return values

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.array(SCALARS[kind], 1)[0].item()
        item_kind, count = self.number("I"), self.number("Q")
        if item_kind in SCALARS:
            return self.array(SCALARS[item_kind], count).tolist()
        return [self.value(item_kind) for _ in range(count)]


def _parse(path: Path, content: mmap.mmap) -> GGUFFile:
    from gguf.constants import GGML_QUANT_SIZES

    cursor = _Cursor(content)
    cursor.offset = 4
    version = cursor.number("I")
    if version not in (2, 3):
        raise ModelError(f"{path} is in version {version} of GGUF; 2 and 3 can be read. Convert the model anew.")
    num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
    metadata = {}
    for _ in range(num_keys):
        key, kind = cursor.text(), cursor.number("I")
        metadata[key] = cursor.value(kind)
    headers = [_tensor_header(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    start = -(-cursor.offset // alignment) * alignment
    tensors = {}
    for name, shape, number, offset in headers:
        kind = _kind(path, name, number)
        if name in tensors:
            raise ValueError(f"it holds the tensor {name} twice")
        if not shape or shape[-1] % GGML_QUANT_SIZES[kind][0]:
            raise ValueError(f"the tensor {name} of type {kind.name} cannot have the shape {list(shape)}")
        tensor = GGUFTensor(name, path, shape, kind, start + offset)
        end = tensor.offset + tensor.row_bytes * (shape[0] if len(shape) > 1 else 1)
        if end > len(content):
            raise ValueError(f"the tensor {name} ends at byte {end}, beyond the file")
        tensors[name] = tensor
    return GGUFFile(path, metadata, tensors)


def _kind(path: Path, name: str, number: int) -> Any:
    from gguf.constants import GGMLQuantizationType

    kind = GGMLQuantizationType(number)
    if kind.name not in READABLE:
        raise ModelError(
            f"{path}: the tensor {name} is stored as {kind.name}, which cannot be expanded; "
            f"{', '.join(READABLE)} can. Use another quantisation of the model."
        )
    return kind


def _tensor_header(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, num_axes = cursor.text(), cursor.number("I")
    shape = tuple(cursor.number("Q") for _ in range(num_axes))
    return name, shape[::-1], cursor.number("I"), cursor.number("Q")
