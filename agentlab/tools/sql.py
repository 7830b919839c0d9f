"""A tool that asks an SQLite database, read-only unless told otherwise."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

from agentlab.errors import ConfigError, ToolError
from agentlab.tools.base import Tool
from agentlab.types import Task

READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, 33}
"""Actions of a query; 33 is SQLITE_RECURSIVE, which the module does not name before Python 3.14."""
REFUSED = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}
"""Never allowed: they open other files."""
SHOWN_PRAGMAS = ("table_info", "table_list", "index_list", "foreign_key_list")
FUNCTIONS = ("load_extension", "writefile", "readfile", "edit", "fts3_tokenizer")
"""Functions that reach out of the database, where a build of SQLite has them."""
STEPS = 1000
"""Instructions of SQLite's machine between two looks at the clock."""
MAX_CELL_CHARS = 200


@final
class SQL(Tool):
    """Runs one SQL statement on an SQLite database and answers with the rows.

    Args:
        database: A file, or SQL text that makes a database in memory. None takes such a text from
            `task.data["sql"]`; each episode then has a database of its own.
        writable: Allow statements that change it.
        max_rows: Rows that are shown.
        timeout_s: Seconds after which a statement is stopped.
        max_bytes: Most bytes that a database, and a single value, may have.

    Raises:
        ConfigError: there is no such file, the text is not SQL, or an option is impossible.
    """

    def __init__(
        self,
        database: str | Path | None = None,
        *,
        writable: bool = False,
        max_rows: int = 50,
        timeout_s: float = 5.0,
        max_bytes: int = 16 << 20,
    ) -> None:
        if max_rows < 1 or not timeout_s > 0 or max_bytes < 4096:
            raise ConfigError(
                "max_rows must be at least 1, timeout_s above 0 and max_bytes at least 4096, "
                f"got {max_rows}, {timeout_s} and {max_bytes}."
            )
        self.database, self.writable = database, writable
        self.max_rows, self.timeout_s, self.max_bytes = max_rows, timeout_s, max_bytes
        self._image: bytes | None = None
        if is_script(database):
            self._image = built(str(database))
        elif database is not None and not Path(database).is_file():
            raise ConfigError(
                f"There is no database {str(database)!r}. Give a file, or SQL text that makes a database."
            )

    def bind(self, task: Task) -> Tool:
        """A database of this episode's own, unless it is a file.

        Raises:
            ConfigError: there is none in `task.data["sql"]` either.
        """
        if self.database is not None and not is_script(self.database):
            return self
        script = task.data.get("sql") if self.database is None else self.database
        if not isinstance(script, str):
            raise ConfigError(
                f"SQL needs a database: SQL(path), SQL('CREATE TABLE ...'), or task.data['sql']. "
                f"Task {task.id!r} has {sorted(task.data)}."
            )
        limits = {"max_rows": self.max_rows, "timeout_s": self.timeout_s, "max_bytes": self.max_bytes}
        return SQL(script, writable=self.writable, **limits)

    def __call__(self, query: str) -> str:
        """Run it.

        Args:
            query: One statement of SQLite's SQL.

        Raises:
            ToolError: it is wrong, not allowed, or takes too long.
        """
        with self._connection() as connection:
            deadline = time.monotonic() + self.timeout_s
            connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
            try:
                cursor = connection.execute(query)
                rows = cursor.fetchmany(self.max_rows + 1)
                connection.commit()
            except (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeError) as error:
                raise ToolError(self._said(error, deadline)) from error
            if self.writable and self._image is not None:
                self._image = connection.serialize()
            return self._table(cursor, rows)

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        if self.database is None:
            raise ConfigError("SQL has no database. Give it one, or put SQL text into task.data['sql'].")
        where = ":memory:"
        if self._image is None:
            where = f"{Path(self.database).resolve().as_uri()}?mode={'rw' if self.writable else 'ro'}"
        connection = sqlite3.connect(where, uri=True, timeout=self.timeout_s, check_same_thread=False)
        try:
            if self._image is not None:
                connection.deserialize(self._image)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self.max_bytes)
            connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            connection.execute(f"PRAGMA max_page_count={self.max_bytes // 4096}")
            connection.execute("PRAGMA temp_store=MEMORY")
            connection.set_authorizer(self._allows)
            yield connection
        finally:
            connection.close()

    def _allows(self, action: int, first: str | None, second: str | None, *_: Any) -> int:
        if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in FUNCTIONS:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA:
            return sqlite3.SQLITE_OK if (first or "").lower() in SHOWN_PRAGMAS else sqlite3.SQLITE_DENY
        allowed = action in READS if not self.writable else action not in REFUSED
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def _said(self, error: BaseException, deadline: float) -> str:
        if "interrupted" in str(error) or time.monotonic() > deadline:
            return f"The statement took longer than {self.timeout_s:g} s and was stopped."
        if any(word in str(error) for word in ("not authorized", "authorization denied", "prohibited")):
            only = "" if self.writable else " This database can only be read: use SELECT."
            return f"This statement is not allowed here.{only}"
        return f"{type(error).__name__}: {error}"

    def _table(self, cursor: sqlite3.Cursor, rows: list[tuple[Any, ...]]) -> str:
        if cursor.description is None:
            return f"Done; {max(cursor.rowcount, 0)} rows changed."
        lines = [" | ".join(column[0] for column in cursor.description)]
        lines += [" | ".join(_cell(value) for value in row) for row in rows[: self.max_rows]]
        more = f"\n(only the first {self.max_rows} rows are shown)" if len(rows) > self.max_rows else ""
        return "\n".join(lines) + (more or ("" if rows else "\n(no rows)"))


def is_script(database: str | Path | None) -> bool:
    """Whether this is SQL text, not the path of a file."""
    return isinstance(database, str) and (";" in database or "create table" in database.lower())


def built(script: str) -> bytes:
    """The image of a database in memory that this text makes.

    Raises:
        ConfigError: the text is not SQL.
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.executescript(script)
            connection.commit()
        except sqlite3.Error as error:
            raise ConfigError(f"The SQL text that should make the database is wrong: {error}.") from error
        return connection.serialize()


def _cell(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= MAX_CELL_CHARS else f"{text[:MAX_CELL_CHARS]}…"
