"""Values that are in effect ("open") here: in this thread, task or generator, or in the code that started its work.

A context, such as that of a listener, opens a value in a `Scope`; code inside asks the scope for its open values.

- A thread has its own values, and so has a task of asyncio, which begins with the values of the code that made it.
- A `with` statement in a generator function is in effect while the generator itself runs, not between its steps. It is
  in effect for the caller if the generator is a context manager of contextlib, or a fixture of pytest.
- `carried(job)` takes the open values to the thread that runs the job.
- Values may be closed in any order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Job = TypeVar("Job", bound=Callable[..., Any])

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
# Packages that run a generator on behalf of the code around it.
_FOR_CALLERS = ("contextlib", "_pytest", "pluggy", "pytest_asyncio", "anyio")


@dataclasses.dataclass(eq=False, repr=False, slots=True)
class Opened(Generic[T]):
    """A value that is open (in effect) in a scope, until it is closed."""

    _scope: Scope[T] | None
    _value: T | None
    _generator: FrameType | None = None  # the generator that opened it, and the task that runs the generator
    _task: object = None

    def __enter__(self) -> None:
        self._generator, self._task = _generator(), _task()
        _here.set((*_here.get(), (self, True)))

    def __exit__(self, *_: object) -> None:
        global _closed
        if self._scope is not None:
            self._scope._known = _NOTHING  # which would keep the value alive
        self._scope = self._value = self._generator = self._task = None  # for those who began with it
        _closed += 1
        _here.set(tuple(entry for entry in _here.get() if entry[0] is not self))

    def holds(self) -> bool:
        """Whether the value is in effect: False if it was opened in a generator that is suspended now."""
        return self._generator is None or _is_running(self._generator) or self._task is not _task()


# The values that are open here, and whether each was opened here; otherwise a job carried it here.
_here: ContextVar[tuple[tuple[Opened[Any], bool], ...]] = ContextVar("headwise_open", default=())


_closed = 0  # how many values were closed
_NOTHING: tuple[object, int, tuple[Any, ...]] = ((), 0, ())


class Scope(Generic[T]):
    """The open values of one kind, such as all listeners."""

    def __init__(self) -> None:
        # (entries, `_closed`, result) of the last `here()` whose result did not depend on a generator.
        self._known: tuple[object, int, tuple[T, ...]] = _NOTHING

    def open(self, value: T) -> Opened[T]:
        """Return a context in which `value` is open: code that runs inside finds it among `here()`."""
        return Opened(self, value)

    def here(self) -> tuple[T, ...]:
        """List the values of this scope that are open here, the first opened first."""
        entries = _here.get()
        if not entries:
            return ()
        of, closed, found = self._known
        if of is entries and closed == _closed:
            return found
        closed, mine = _closed, [entry for entry in entries if entry[0]._scope is self]
        found = tuple([x._value for x, own in mine if not own or x.holds()])  # type: ignore[misc]
        if all(x._generator is None for x, _ in mine):
            self._known = entries, closed, found
        return found


@contextlib.contextmanager
def within(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable of this thread or task to this value, inside of a `with` statement."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def carried(job: Job) -> Job:
    """Wrap a job so that it runs, in any thread, with the values that are open here; return it as it is if none are."""
    found = tuple((x, False) for x, own in _here.get() if x._scope is not None and (not own or x.holds()))
    return _inside(found, job) if found else job


def alone(job: Job) -> Job:
    """Wrap a job so that it runs with no open values."""
    return _inside((), job)


def _inside(entries: tuple[tuple[Opened[Any], bool], ...], job: Job) -> Job:
    @functools.wraps(job)
    def run(*args: Any, **kwargs: Any) -> Any:
        with within(_here, entries):
            return job(*args, **kwargs)

    return run  # type: ignore[return-value]


def _is_running(wanted: FrameType) -> bool:
    """Whether a frame of Python is on the stack of this thread."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


def _generator() -> FrameType | None:
    """Return the frame of the innermost running generator, or None; those run by contextlib or pytest do not count."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code, caller = frame.f_code, frame.f_back
        if code.co_flags & _GENERATOR and code.co_name != "<genexpr>":
            runs_for = "" if caller is None else caller.f_globals.get("__name__", "").partition(".")[0]
            if runs_for not in _FOR_CALLERS:
                return frame
        frame = caller
    return None


def _task() -> object:
    """Return the task of asyncio that runs now; None if none does."""
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
