"""Looking something up in a table."""

from collections.abc import Mapping
from typing import Any

from agentlab.errors import ConfigError, ToolError, nearest
from agentlab.tools.base import Tool, as_text
from agentlab.types import Task


class Lookup(Tool):
    """Looks up an item and answers with its value.

    Args:
        table: Values by item. None takes the table of each episode from `task.data["table"]`.
    """

    def __init__(self, table: Mapping[str, Any] | None = None) -> None:
        self.table = table

    def __call__(self, item: str) -> str:
        """Look it up; upper and lower case are the same.

        Raises:
            ToolError: the table has no such item.
        """
        if self.table is None:
            raise ConfigError("Lookup has no table. Give it one, or put one into task.data['table'].")
        values = {key.strip().lower(): value for key, value in self.table.items()}
        found = values.get(item.strip().lower())
        if found is None:
            raise ToolError(f"There is no {item!r}.{nearest(item, self.table)}")
        return as_text(found)

    def bind(self, task: Task) -> Tool:
        """The tool with the task's own table, unless it has one.

        Raises:
            ConfigError: there is no table anywhere.
        """
        if self.table is not None:
            return self
        table = task.data.get("table")
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"Lookup needs a table: Lookup({{...}}), or task.data['table']. "
                f"Task {task.id!r} has {sorted(task.data)}."
            )
        return Lookup(table)
