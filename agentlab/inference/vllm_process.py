"""A vLLM server as a child process in a Python environment of its own, which never outlives us."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentlab.errors import ConfigError, EngineError
from agentlab.inference import vllm_guard, vllm_plugin
from agentlab.inference.vllm_base import check_options
from agentlab.platform.progress import bar

ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",  # the routes for new weights; they have no password, hence loopback only
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Settings of every server; a caller's `env` wins."""
NUM_LAST_LINES = 20


class ServerProcess:
    """One server. Owned by the thread that made it.

    Args:
        folder: The model's folder, or its Hugging Face name.
        python: The interpreter of an environment in which vLLM is installed.
        env: Environment variables of the server, in addition to ours.
        options: Of `vllm serve`, with underscores: `max_model_len=4096`, `enforce_eager=True`.

    Raises:
        ConfigError: the interpreter does not exist, or an option is one of ours.
    """

    def __init__(
        self, folder: str | Path, *, python: str | Path, env: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        found = shutil.which(python)
        if found is None:
            raise ConfigError(f"python must be an interpreter with vLLM, but {str(python)!r} cannot be run.")
        check_options(options)
        self.url = f"http://127.0.0.1:{_free_port()}"
        self._folder = tempfile.mkdtemp(prefix="agentlab-vllm-")
        self.log = Path(self._folder) / "server.log"
        """What the server has said."""
        plugins = _plugin_folder(Path(self._folder))
        with self.log.open("wb") as log:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", vllm_guard.__file__, found, *_command(str(folder), self.url, options)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(plugins, env or {}),
                start_new_session=True,
            )
        self.close = weakref.finalize(self, _close, self._guard, self._folder)
        """End the server. Also done when this object or the interpreter goes."""

    @property
    def ended(self) -> bool:
        """Whether the server has ended, for whatever reason."""
        return self._guard.poll() is not None

    def last_lines(self) -> str:
        """The end of what the server has said; of its errors, if it told any."""
        if not self.log.exists():
            return "(its log is gone)"
        lines = self.log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if " ERROR " in line]
        return "\n".join((errors or lines)[-NUM_LAST_LINES:])

    def wait_until_healthy(self, healthy: Callable[[str], bool], *, timeout_s: float, progress: bool) -> None:
        """Wait for the server, with a bar that counts the seconds.

        Raises:
            EngineError: it ended, or is not healthy in time; the text shows its last lines.
        """
        began_s = time.monotonic()
        label, form = f"Starting vLLM at {self.url}", "{desc}: {n:.0f} s {postfix}"
        with bar(None, label, kind="starting vLLM", enabled=progress, form=form) as shown:
            while not healthy(self.url):
                waited_s = time.monotonic() - began_s
                if self.ended or waited_s > timeout_s:
                    why = "ended" if self.ended else f"was not healthy within {timeout_s:g} s"
                    lines = self.last_lines()
                    self.close()
                    raise EngineError(f"The vLLM server {why}. Its last lines:\n{lines}")
                shown.n = waited_s
                shown.set_postfix_str(self.last_lines().rpartition("\n")[2][-60:])
                time.sleep(0.2)


def _command(model: str, url: str, options: Mapping[str, Any]) -> Sequence[str]:
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", "127.0.0.1", "--port", url.rpartition(":")[2]]
    command += ["--enable-scale-out", "--enable-prompt-tokens-details", "--logprobs-mode", "processed_logprobs"]
    command += ["--weight-transfer-config", f'{{"backend": "{vllm_plugin.BACKEND}"}}']
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            command += [f"--{flag}", str(value)]
    return command


def _environment(plugins: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would lead another Python astray."""
    theirs = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")}
    return {**theirs, **ENVIRONMENT, **env, "PYTHONPATH": str(plugins)}


def _plugin_folder(folder: Path) -> Path:
    """A folder for the server's `sys.path` that holds the plugin alone, announced by its metadata."""
    plugins = folder / "plugins"
    about = plugins / "agentlab_vllm_plugin-1.dist-info"
    about.mkdir(parents=True)
    shutil.copyfile(vllm_plugin.__file__, plugins / "agentlab_vllm_plugin.py")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: agentlab-vllm-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\nagentlab = agentlab_vllm_plugin:load\n")
    return plugins


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _close(guard: "subprocess.Popen[bytes]", folder: str) -> None:
    if guard.stdin is not None:
        with contextlib.suppress(OSError):
            guard.stdin.close()
    try:
        guard.wait(vllm_guard.GRACE_S + 5)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
