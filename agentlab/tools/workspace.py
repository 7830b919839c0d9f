"""A tool that lists, reads and changes text files: in memory, or in a sandbox that other tools share."""

import posixpath
from collections.abc import Mapping
from typing import Literal, final

from agentlab.errors import ConfigError, ToolError, nearest
from agentlab.tools.base import Tool
from agentlab.tools.sandbox import Sandbox
from agentlab.types import Task

MAX_CHARS = 1_000_000
"""Most characters that all files in memory may have together."""

Command = Literal["list", "read", "write", "replace", "delete"]


@final
class Workspace(Tool):
    """Works on text files: list them, read one, write one, replace a passage in one, or delete one.

    Args:
        files: What it begins with: texts by path, kept in memory, for each episode anew; or a
            `Sandbox`, whose working folder it is. None takes `task.data["files"]`, if there are any.

    Raises:
        ConfigError: files are something else.
    """

    def __init__(self, files: Mapping[str, str] | Sandbox | None = None) -> None:
        self.sandbox = files if isinstance(files, Sandbox) else None
        self._given = None if files is None or isinstance(files, Sandbox) else checked_files(files)
        self.texts: dict[str, str] = dict(self._given or {})
        """The files in memory; not used with a sandbox."""

    def bind(self, task: Task) -> Tool:
        """A workspace of this episode's own, unless it is in a sandbox.

        Raises:
            ConfigError: `task.data["files"]` are not texts by path.
        """
        if self.sandbox is not None:
            return self
        return Workspace(task.data.get("files", {}) if self._given is None else self._given)

    def __call__(self, command: Command, path: str = "", text: str = "", new_text: str = "") -> str:
        """Do it.

        Args:
            command: "list", "read", "write" (the whole text), "replace" (text by new_text) or "delete".
            path: The file, e.g. "notes/a.txt".
            text: What to write, or the passage to replace, which must occur exactly once.
            new_text: What to put in its place.

        Raises:
            ToolError: the path leads nowhere, or the passage does not occur once.
        """
        if command == "list":
            return "\n".join(f"{name} ({size} bytes)" for name, size in self._sizes().items()) or "(no files)"
        name = normal_path(path)
        if command == "read":
            return self._read(name)
        if command == "write":
            self._write(name, text)
            return f"Wrote {len(text)} characters to {name}."
        if command == "delete":
            self._delete(name)
            return f"Deleted {name}."
        before = self._read(name)
        if not text or (count := before.count(text)) != 1:
            found = f"it occurs {count} times" if text else "it is empty"
            raise ToolError(f"The text to replace must occur exactly once in {name}, but {found}.")
        self._write(name, before.replace(text, new_text))
        return f"Replaced it in {name}."

    def _sizes(self) -> dict[str, int]:
        if self.sandbox is not None:
            return self.sandbox.files()
        return {name: len(self.texts[name].encode("utf-8", "surrogatepass")) for name in sorted(self.texts)}

    def _read(self, name: str) -> str:
        if self.sandbox is not None:
            return self.sandbox.read(name)
        if name not in self.texts:
            raise ToolError(f"There is no file {name!r}.{nearest(name, self.texts) if self.texts else ''}")
        return self.texts[name]

    def _write(self, name: str, text: str) -> None:
        if self.sandbox is not None:
            self.sandbox.write({name: text})
            return
        if any(other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in self.texts):
            raise ToolError(f"{name!r} cannot be a file and a folder at once.")
        if sum(len(other) for key, other in self.texts.items() if key != name) + len(text) > MAX_CHARS:
            raise ToolError(f"The workspace is full: all files together may have {MAX_CHARS} characters.")
        self.texts[name] = text

    def _delete(self, name: str) -> None:
        if self.sandbox is not None:
            self.sandbox.delete(name)
        else:
            self._read(name)
            del self.texts[name]


def checked_files(files: Mapping[str, str]) -> dict[str, str]:
    """Files as texts by path.

    Raises:
        ConfigError: they are something else, or a path leads out of the workspace.
    """
    if not isinstance(files, Mapping) or not all(isinstance(v, str) for kv in files.items() for v in kv):
        raise ConfigError(f'files must be texts by path, like {{"notes.txt": "..."}}, got {files!r:.80}.')
    try:
        return {normal_path(path): text for path, text in files.items()}
    except ToolError as error:
        raise ConfigError(f"files: {error}") from error


def normal_path(path: str) -> str:
    """A path within the workspace, in its shortest form.

    Raises:
        ToolError: it is empty, absolute, or leads out of the workspace.
    """
    name = posixpath.normpath(path.strip()) if path.strip() else ""
    if not name or name in (".", "..") or name.startswith(("/", "../")) or "\0" in name:
        raise ToolError(f"The path must lead to a file in the workspace, e.g. 'notes/a.txt', got {path!r:.80}.")
    return name
