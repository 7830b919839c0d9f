"""Checkpoints of the trainer: one folder per version, written whole or not at all, with Orbax."""

import json
from pathlib import Path
from typing import Any

import jax

from agentlab.errors import ConfigError

KEPT = 2
"""Newest checkpoints that are kept."""


def save_state(folder: Path, version: int, state: Any, *, about: dict[str, Any]) -> Path:
    """Write `state` as the checkpoint of `version`, and remove all but the newest KEPT.

    Args:
        folder: Made where missing.
        state: A pytree of arrays.
        about: What a trainer must have in common with this one to go on from it; JSON.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    with _manager(folder) as manager:
        manager.save(version, args=_saved(state, about), force=True)
        manager.wait_until_finished()
        return Path(manager.directory) / str(version)


def restore_state(folder: Path, like: Any, *, about: dict[str, Any]) -> tuple[int, Any]:
    """(version, state) of the newest complete checkpoint below `folder`.

    Args:
        like: A pytree of arrays of the same structure and shapes.
        about: As given to `save_state`.

    Raises:
        ConfigError: there is no checkpoint, or it is of something else.
    """
    import orbax.checkpoint as ocp

    if not folder.is_dir():
        raise ConfigError(f"There must be a checkpoint in {folder}, but there is no such folder. Check the path.")
    with _manager(folder) as manager:
        version = manager.latest_step()
        if version is None:
            raise ConfigError(f"There must be a checkpoint in {folder}, but it holds none. Check the path.")
        found = manager.restore(version, args=ocp.args.Composite(about=ocp.args.JsonRestore()))["about"]
        _check_same(folder, found, about)
        shapes = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding), like
        )
        restored = manager.restore(version, args=ocp.args.Composite(state=ocp.args.StandardRestore(shapes)))
    return version, restored["state"]


def _check_same(folder: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    wanted = json.loads(json.dumps(wanted))
    names = sorted({*found, *wanted})
    differences = [
        f"{name}: {found.get(name)!r} there, {wanted.get(name)!r} here"
        for name in names
        if found.get(name) != wanted.get(name)
    ]
    if differences:
        raise ConfigError(
            f"The checkpoint in {folder} must be of the same model and configuration. Differences: "
            f"{'; '.join(differences)}. Make the trainer as the saved one was, or name another folder."
        )


def _manager(folder: Path) -> Any:
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, create=True, enable_async_checkpointing=False)
    return ocp.CheckpointManager(folder.absolute(), options=options, item_names=("state", "about"))


def _saved(state: Any, about: dict[str, Any]) -> Any:
    import orbax.checkpoint as ocp

    return ocp.args.Composite(state=ocp.args.StandardSave(state), about=ocp.args.JsonSave(about))
