"""Everything that is changed outside of headwise while somebody follows a model.

What a follower needs of the process (torch.compile's stance, jobs of threads that take it along, transformers'
registry) or of a model (`generate`) is changed by the first that needs it, and changed back by the last that leaves.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

Undo = Callable[[], None]

_lock = threading.RLock()
_changes: dict[Hashable, tuple[list[object], Undo]] = {}  # what is changed -> who needs it, and what changes it back
_MISSING = object()


@contextlib.contextmanager
def changed(what: Hashable, change: Callable[[], Undo]) -> Iterator[None]:
    """Inside, `change` has changed something; what it returned changes that back when nobody is inside any more."""
    me = object()
    with _lock:
        if what not in _changes:
            _changes[what] = [], change()
        _changes[what][0].append(me)
    try:
        yield
    finally:
        with _lock:
            users, undo = _changes[what]
            users.remove(me)
            if not users:
                del _changes[what]
                undo()


def is_changed(what: Hashable) -> bool:
    """Whether somebody is inside."""
    return what in _changes


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Undo:
    """Replace a function of a class, a module or an object by what `make` makes of it. Returns what puts it back.

    One that somebody else has replaced since stays.
    """
    before, new = vars(owner).get(name, _MISSING), make(getattr(owner, name))
    setattr(owner, name, new)

    def undo() -> None:
        if vars(owner).get(name) is not new:
            return
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return undo
