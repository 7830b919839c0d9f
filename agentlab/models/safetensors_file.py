"""Reading safetensors files block by block, so that a weight is never in memory more than once.

Source: the format's description in the README of huggingface/safetensors. Its own reader maps the whole file, whose
pages then count as the process's memory beside the weights.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from agentlab.errors import ModelError

BLOCK_BYTES = 4 * 2**20
"""About how much of a tensor is read at a time."""
LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the format's own reader."""
DTYPES: dict[str, Any] = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class SafeTensor:
    """Where a tensor lies in a file."""

    name: str
    path: Path
    dtype: np.dtype
    shape: tuple[int, ...]
    offset: int
    """Bytes from the beginning of the file."""

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(index of the first row, some rows) from the first row to the last.

        Raises:
            ModelError: the file has become shorter since its header was read.
        """
        row_bytes = self.dtype.itemsize * prod(self.shape[1:])
        step = max(1, BLOCK_BYTES // max(row_bytes, 1))
        with self.path.open("rb") as file:
            file.seek(self.offset)
            for start in range(0, self.shape[0], step):
                rows = min(step, self.shape[0] - start)
                content = file.read(rows * row_bytes)
                if len(content) < rows * row_bytes:
                    raise _damaged(self.path, f"it ends inside of the tensor {self.name}")
                yield start, np.frombuffer(content, self.dtype).reshape(rows, *self.shape[1:])


def read_safetensors(path: Path) -> dict[str, SafeTensor]:
    """The tensors of a safetensors file by name; only its header is read.

    Raises:
        ModelError: it cannot be read, is truncated or damaged, or holds something other than floating-point numbers.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(LONGEST_HEADER, size - 8):
                raise _damaged(path, f"at {size} bytes it ends before its header of {length} bytes does")
            header = json.loads(file.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        tensors = {name: _tensor(path, name, entry, 8 + length) for name, entry in entries.items()}
        _check_layout(path, entries, size - 8 - length)
    except (OSError, struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    return tensors


def _tensor(path: Path, name: str, entry: dict[str, Any], start: int) -> SafeTensor:
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if not all(isinstance(size, int) and size > 0 for size in (*shape, end)) or not isinstance(begin, int):
        raise ValueError(f"the tensor {name} has the shape {shape!r:.80} and lies at {begin!r:.20} to {end!r:.20}")
    if entry["dtype"] not in DTYPES:
        raise ModelError(
            f"{path}: the tensor {name} must hold floating-point numbers ({', '.join(DTYPES)}), got "
            f"{entry['dtype']!r:.40}. Use the model in its unquantised form, or its .gguf file."
        )
    dtype = np.dtype(DTYPES[entry["dtype"]])
    if begin < 0 or end - begin != prod(shape) * dtype.itemsize:
        raise ValueError(f"the tensor {name} of shape {list(shape)} cannot have {end - begin} bytes")
    return SafeTensor(name, path, dtype, shape, start + begin)


def _check_layout(path: Path, entries: dict[str, Any], size: int) -> None:
    """The format allows neither gaps nor overlaps."""
    at = 0
    for begin, end in sorted(entry["data_offsets"] for entry in entries.values()):
        if begin != at:
            raise _damaged(path, f"its tensors must lie one behind the other, and byte {at} is followed by {begin}")
        at = end
    if at != size:
        raise _damaged(path, f"its tensors take {at} bytes, and it holds {size}")


def _damaged(path: Path, reason: str) -> ModelError:
    return ModelError(
        f"{path} must be a complete safetensors file, and reading it failed ({reason}). "
        "It is truncated or damaged: download it again."
    )
