"""The classes of the tasks by name, for what stands below them.

`headwise/tasks/__init__.py` fills this in. It always runs first, and each class is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.tasks.task import Task

KINDS: dict[str, Callable[[], type[Task[Any]]]] = {}
