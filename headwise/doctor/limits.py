"""A limit on time, and the findings about code that did not return: it hangs, crashes, or takes all memory.

with time_limit(10):
    module(x)          # raises TookTooLong, which knows the line that was running

Imports no torch: `--isolate` runs the code, and torch, in another process.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from types import FrameType

from headwise.doctor.finding import Finding, Where
from headwise.doctor.lines import last_line, users_line
from headwise.doctor.result import Diagnosis
from headwise.errors import DoctorError
from headwise.language import Sentence

GIGABYTE = 1e9
_AGAIN = 0.5  # seconds after which code that swallowed the interruption is interrupted again


class TookTooLong(DoctorError):  # noqa: N818 (what happened, in words)
    """Code did not finish in time. `where` is the line of the user's code that was running, or None."""

    def __init__(self, seconds: float, where: Where | None) -> None:
        at = f" at {where}" if where else ""
        super().__init__(Sentence("it did not finish within {seconds}{at}").format(seconds=_seconds(seconds), at=at))
        self.seconds = seconds
        self.where = where


def can_interrupt() -> bool:
    """Whether `time_limit` works here: only in the main thread, and not on Windows."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt the code inside after `seconds` by raising `TookTooLong`. None: no limit.

    Limits can be nested: the one that expires first raises. `except Exception` in the code does not catch the
    interruption. Code that never returns to Python (a loop in C) is not interrupted, nor is any code where
    `can_interrupt()` is False. For those, use a separate process (`headwise.doctor.targets.isolate`).
    """
    if seconds is None or not can_interrupt():
        yield
        return
    if not (seconds > 0 and math.isfinite(seconds)):
        raise DoctorError(f"time_limit: seconds must be a finite number above 0. Received: seconds={seconds}")
    begun = time.monotonic()
    over = _Over()
    armed = True
    limited = sys._getframe(2)  # the frame of the `with`: behind that of this generator and that of contextlib
    outer = signal.getsignal(signal.SIGALRM)
    outer_rest, outer_again = signal.getitimer(signal.ITIMER_REAL)

    def expire(number: int, frame: FrameType | None) -> None:
        if not armed:
            return
        if time.monotonic() - begun < seconds - 1e-3:  # the outer limit has expired
            if callable(outer):
                outer(number, frame)
            return
        over.where = over.where or _where(frame, limited)
        raise over

    signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, min(seconds, outer_rest or seconds), _AGAIN)
        try:
            yield
        finally:
            armed = False
    except _Over as caught:
        if caught is not over:
            raise
        raise TookTooLong(seconds, over.where) from None
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, outer)
        if outer_rest:
            rest = outer_rest - (time.monotonic() - begun)
            signal.setitimer(signal.ITIMER_REAL, rest if rest > 0 else outer_again or 1e-3, outer_again)


class _Over(BaseException):
    """Not an Exception, so that code that tries alternatives with `except Exception` does not swallow it."""

    where: Where | None = None


def _seconds(seconds: float) -> str:
    shown = round(seconds, None if seconds >= 10 else 1)
    return (Sentence("{seconds:g} second") if shown == 1 else Sentence("{seconds:g} seconds")).format(seconds=shown)


def _where(frame: FrameType | None, limited: FrameType) -> Where | None:
    """The innermost line of the user's code that runs inside of `limited`; what is outside only called the doctor."""
    inside = itertools.takewhile(lambda x: x[0] is not limited, traceback.walk_stack(frame))
    return users_line((each.f_code.co_filename, line) for each, line in inside)


# --- As findings -----------------------------------------------------------------------------------------------------

_NO_MEMORY = ("allocate memory", "calculation overflowed")
LONG = 512  # tokens: that so many take much memory says nothing about a module


def size(count: float) -> str:
    """Bytes in a readable unit."""
    return f"{count / GIGABYTE:,.1f} GB" if count >= GIGABYTE else f"{count / 1e6:,.0f} MB"


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError) or any(said in str(error) for said in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


def alone(subject: str, finding: Finding) -> Diagnosis:
    """A diagnosis with only this finding, of code that did not return: nothing else is known about the module."""
    why = "code that does not return cannot be checked any further"
    return Diagnosis(subject=subject, findings=(finding,), unchecked={"everything else": why})


def hangs(seconds: float, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that code did not finish; `doing`: "forward", "the constructor of …", "the import of …"."""
    cure = "look at the loop, the lock or the wait at this line"
    if doing.startswith("the import"):
        cure = "put code that trains, serves or waits under if __name__ == '__main__':"
    evidence = Sentence("{doing} did not finish within {seconds}").format(doing=doing, seconds=_seconds(seconds))
    fix = Sentence("{cure}; if it is only slow, allow more time (--timeout)").format(cure=cure)
    return Finding("hangs", "bug", evidence, fix, where)


def crashes(how: str, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that code ends the process that calls it."""
    fix = (
        "the code must not end the process: raise an error instead; if this line does not show the cause, run it "
        "alone under python -X faulthandler"
    )
    return Finding("crashes", "bug", Sentence("{doing} did not return: {how}").format(doing=doing, how=how), fix, where)


def too_large(memory: float | None, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that code uses more than `memory` bytes or, if `memory` is None, all available memory."""
    most = (
        "all available memory" if memory is None else Sentence("more than {size} of memory").format(size=size(memory))
    )
    evidence = Sentence("{doing} took {most}, although the doctor's inputs are only a few tokens long").format(
        doing=doing, most=most
    )
    fix = (
        "look for a tensor whose size does not follow from the input's; if the module is just large, choose "
        "smaller sizes, or allow more memory (--memory)"
    )
    return Finding("too-large", "bug", evidence, fix, where)


def ended_by(
    error: BaseException, doing: str = "forward", *, memory: float | None = None, where: Where | None = None
) -> Finding | None:
    """The finding about an error that says that code hangs, leaves, or takes all memory; None for any other error.

    `where` is the line for an error that has none of the user's.
    """
    if isinstance(error, TookTooLong):
        return hangs(error.seconds, error.where, doing)
    if isinstance(error, SystemExit):
        return crashes(f"sys.exit({error.code!r})", last_line(error) or where, doing)
    if not out_of_memory(error):
        return None
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return too_large(memory, last_line(error), doing)
