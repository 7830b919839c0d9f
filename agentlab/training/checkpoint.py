"""Checkpoints: one folder per version, written in the background, whole or not at all, with Orbax."""

import os
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import jax
import numpy as np

from agentlab import options
from agentlab.errors import CheckpointError, ConfigError
from agentlab.models import Model
from agentlab.models.tree import flat_arrays

KEPT = 2
"""Newest checkpoints that `Trainer.save` keeps."""
ITEMS = ("state", "about", "record")
UNFINISHED = re.compile(r"\d+\.orbax-checkpoint-tmp.*")
"""Names of folders in which a checkpoint is being written."""
REMOVAL_TRIES = 40
FREE_OPTIONS = frozenset(
    {
        *("max_concurrency", "max_workers", "num_slots", "micro_batch_tokens", "logit_chunk_tokens", "remat"),
        *("max_failed_groups", "stall_after_s", "model_timeout_s", "reset_timeout_s", "close_timeout_s"),
    }
)
"""Options that a resumed run may change: they say how fast and in how much memory, not what is learned."""


@dataclass(frozen=True)
class Restored:
    """A checkpoint that was read."""

    version: int
    state: Any
    record: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    """Of newer checkpoints that could not be read, why not."""


class DamagedError(Exception):
    """What was read is not what was written."""


@final
class CheckpointStore:
    """The checkpoints in one folder. Belongs to the thread that made it.

    Args:
        folder: A path, or an address such as "gs://bucket/run"; made where missing.
        keep: Newest checkpoints that are kept.

    Raises:
        ConfigError: keep is below 1.
        CheckpointError: the folder cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 3):
        import orbax.checkpoint as ocp

        if keep < 1:
            raise ConfigError(f"keep_checkpoints must be at least 1, got {keep}.")
        self.folder = place(folder)
        self._writing: int | None = None
        kept = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=True)
        try:
            self._manager = ocp.CheckpointManager(self.folder, options=kept, item_names=ITEMS)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint_dir must be a folder that can be written, but {self.folder} cannot be opened: "
                f"{_first_line(error)}. Name another folder."
            ) from error

    @property
    def versions(self) -> tuple[int, ...]:
        """Of the checkpoints that were written to their end, oldest first."""
        return tuple(sorted(self._manager.all_steps()))

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is still being written."""
        return self._manager.is_saving_in_progress()

    def save(self, version: int, state: Any, *, about: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        """Begin to write the checkpoint of `version`; what is there under it is replaced.

        Returns when `state` has been copied to the host, and may be changed or donated. Waits for a
        checkpoint that is still being written. Afterwards all but the newest `keep` are removed.
        What other writers of this folder left half-written is removed first.

        Args:
            state: A pytree of arrays.
            about: What a trainer must have in common with this one to go on from it; plain JSON.
            record: What the run has done so far; plain JSON.

        Raises:
            CheckpointError: this one, or the one before it, cannot be written; nothing of it is left.
        """
        self.wait()
        self._writing = version
        try:
            self._remove_unfinished()
            self._begin(version, state, about, record)
        except Exception as error:  # of the disk, of the accelerator, or of what is to be written
            raise self._failed(error) from error

    def _begin(self, version: int, state: Any, about: Mapping[str, Any], record: Mapping[str, Any]) -> None:
        import orbax.checkpoint as ocp

        arrays = {name: np.array(jax.device_get(array)) for name, array in named_arrays(state).items()}
        listed = [{"name": name, "crc32": checksum(array)} for name, array in arrays.items()]
        if version in self.versions:
            self._manager.delete(version)
        args = ocp.args.Composite(
            state=ocp.args.StandardSave({key(index): array for index, array in enumerate(arrays.values())}),
            about=ocp.args.JsonSave(dict(about)),
            record=ocp.args.JsonSave({"arrays": listed, "record": dict(record)}),
        )
        self._manager.save(version, args=args, force=True)

    def wait(self) -> None:
        """Wait until what was begun is written.

        Raises:
            CheckpointError: it could not be; nothing of it is left.
        """
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:  # as in `save`
            raise self._failed(error) from error
        self._writing = None

    def _failed(self, error: Exception) -> CheckpointError:
        """What to raise when the checkpoint under way could not be written; removes what there is of it."""
        version, self._writing = self._writing, None
        left = ""
        try:
            self._remove_unfinished()
            self._manager.reload()
            partial = self.folder / str(version)
            if version not in self.versions and partial.exists():
                partial.rmtree()
        except OSError as trouble:
            left = f" What was written of it could not be removed ({_first_line(trouble)})."
        return CheckpointError(
            f"The checkpoint of version {version} could not be written to {self.folder}: {_first_line(error)}.{left} "
            "Those before it are still there. Make room or mend the folder, or name another checkpoint_dir."
        )

    def _remove_unfinished(self) -> None:
        """Remove what was never written to its end, by this process or by one that was killed.

        Raises:
            OSError: it cannot be removed.
        """
        for path in list(self.folder.iterdir()):
            if UNFINISHED.fullmatch(path.name):
                _remove(path)

    def close(self) -> None:
        """Give back its threads."""
        self._manager.close()

    def restore(self, like: Any, *, about: Mapping[str, Any]) -> Restored:
        """The newest checkpoint that can be read whole.

        Args:
            like: A pytree of arrays of the same structure and shapes; the arrays are put where these lie.
            about: As given to `save`.

        Raises:
            ConfigError: there is none, it belongs to something else, or none can be read.
        """
        damaged: list[str] = []
        for version in reversed(self.versions):
            try:
                found, told = self._read_json(version)
            except Exception as error:  # whatever a half-written or rotten file makes its reader raise
                damaged.append(_broken(version, error))
                continue
            check_same(str(self.folder), found, about)
            try:
                arrays = self._read_arrays(version, named_arrays(like), told["arrays"])
            except Exception as error:  # as above
                damaged.append(_broken(version, error))
                continue
            placed = [_placed(*pair) for pair in zip(arrays, jax.tree.leaves(like), strict=True)]
            state = jax.tree.unflatten(jax.tree.structure(like), placed)
            notes = tuple(f"{text} Going on from version {version}." for text in damaged)
            return Restored(version, state, told["record"], notes)
        if damaged:
            raise ConfigError(
                f"None of the checkpoints in {self.folder} can be read. {' '.join(damaged)} "
                "Choose another folder to begin anew."
            )
        raise ConfigError(f"There must be a checkpoint in {self.folder}, but it holds none. Check the path.")

    def _read_json(self, version: int) -> tuple[dict[str, Any], dict[str, Any]]:
        import orbax.checkpoint as ocp

        args = ocp.args.Composite(about=ocp.args.JsonRestore(), record=ocp.args.JsonRestore())
        read = self._manager.restore(version, args=args)
        return read["about"], read["record"]

    def _read_arrays(
        self, version: int, wanted: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]
    ) -> list[np.ndarray]:
        import orbax.checkpoint as ocp

        names = [one["name"] for one in listed]
        if names != list(wanted):
            raise DamagedError(f"it holds other arrays: {sorted({*names} ^ {*wanted})[:5]}")
        empty = {key(index): np.zeros(array.shape, array.dtype) for index, array in enumerate(wanted.values())}
        read = self._manager.restore(version, args=ocp.args.Composite(state=ocp.args.StandardRestore(empty)))["state"]
        arrays = [np.asarray(read[key(index)]) for index in range(len(names))]
        for one, array in zip(listed, arrays, strict=True):
            if checksum(array) != one["crc32"]:
                raise DamagedError(f"{one['name']} is not what was written")
        return arrays


def place(folder: str | os.PathLike[str]) -> Any:
    """The folder as a path that knows of local disks and of buckets."""
    from etils import epath

    text = os.fspath(folder)
    return epath.Path(text) if "://" in text else epath.Path(Path(text).expanduser().absolute())


def holds_checkpoints(folder: str | os.PathLike[str]) -> bool:
    """Whether there is at least one that was written to its end."""
    where = place(folder)
    return where.is_dir() and any(path.name.isdigit() for path in where.iterdir())


def check_same(folder: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of something else.

    Raises:
        ConfigError: naming every difference.
    """
    differing = differences(found, wanted)
    if differing:
        raise ConfigError(
            f"The checkpoint in {folder} must be of the same model and configuration. Differences: "
            f"{'; '.join(differing)}. Make the trainer as the saved one was, or name another folder."
        )


def differences(there: Any, here: Any, name: str = "") -> list[str]:
    """Where two JSON values differ, one sentence each: "config.lora_rank: 4 there, 8 here"."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        found = []
        for part in sorted({*there, *here}):
            if part not in there and part in getattr(here, "defaults", ()):
                continue  # an option that is newer than the checkpoint, and left alone
            found += differences(there.get(part), here.get(part), f"{name}.{part}" if name else part)
        return found
    return [] if there == here else [f"{name}: {there!r:.80} there, {here!r:.80} here"]


def described(value: Any) -> Any:
    """`options.described` of what a resumed run must have in common with the one before, without FREE_OPTIONS."""
    return options.described(value, leave_out=FREE_OPTIONS)


def about_model(model: Model) -> dict[str, Any]:
    """What tells two models apart: shape, and a checksum over the first row of every weight."""
    rows = [array[:1] if array.ndim > 1 else array for array in flat_arrays(model.params).values()]
    crc = 0
    for row in jax.device_get(rows):
        crc = zlib.crc32(as_bytes(row), crc)
    return {"shape": described(model.config), "weights": f"{crc:08x}"}


def named_arrays(state: Any) -> dict[str, Any]:
    """The arrays of a pytree by their paths, in the order of the tree."""
    return {jax.tree_util.keystr(path): array for path, array in jax.tree_util.tree_leaves_with_path(state)}


def checksum(array: np.ndarray) -> int:
    """Of shape, type and bytes."""
    return zlib.crc32(as_bytes(array), zlib.crc32(f"{array.dtype}{array.shape}".encode()))


def as_bytes(array: np.ndarray) -> Any:
    """The bytes of an array, whatever its type, as a buffer."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def key(index: int) -> str:
    """The name of an array in a checkpoint; its path in the tree is kept beside it."""
    return f"array{index:05d}"


def _placed(array: np.ndarray, like: Any) -> Any:
    return jax.device_put(array, like.sharding) if isinstance(like, jax.Array) else array


def _broken(version: int, error: Exception) -> str:
    return f"The checkpoint of version {version} cannot be read ({_first_line(error)})."


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {text:.600}"


def _remove(folder: Any) -> None:
    """Remove a folder into which other threads may still be writing what they had begun.

    Raises:
        OSError: it cannot be removed.
    """
    for tries in range(1, REMOVAL_TRIES + 1):
        try:
            folder.rmtree(missing_ok=True)
            return
        except OSError:
            if tries == REMOVAL_TRIES:
                raise
            time.sleep(0.05)
