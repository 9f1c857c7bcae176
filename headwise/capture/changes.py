"""Changes to code outside of headwise that last while a model is watched or edited.

A follower (an object that watches or edits a model) needs changes in the process (torch.compile's stance, thread pools
whose jobs it must follow, the registry of transformers) or in the model (`generate`). The first follower that needs a
change makes it; the last one undoes it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

Undo = Callable[[], None]

_lock = threading.RLock()
_changes: dict[Hashable, tuple[list[object], Undo]] = {}  # what is changed -> who needs it, what undoes it
_MISSING = object()


@contextlib.contextmanager
def changed(what: Hashable, change: Callable[[], Undo]) -> Iterator[None]:
    """Return a context in which the change `what` is in effect.

    Contexts may overlap. The first one calls `change`, which makes the change and returns a function that undoes it;
    the last one to end calls that function.
    """
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
    """Return whether the change `what` is in effect: whether a context of `changed` that needs it is open."""
    return what in _changes


def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Undo:
    """Replace a function of a class, module or object by what `make` returns for it.

    Returns a function that undoes this. Undoing does nothing if somebody else has replaced the function since.
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
