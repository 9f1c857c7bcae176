"""Limits on time and size, for code that may not finish or may be too large to examine.

with time_limit(10):
    module(x)          # raises TookTooLong, which knows the line that was running
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from headwise.doctor.finding import Finding, Where
from headwise.doctor.lines import is_users, last_line, line_of
from headwise.doctor.result import Diagnosis
from headwise.errors import DoctorError

GIGABYTE = 1e9
LARGEST = 2 * GIGABYTE  # of parameters: the doctor makes several copies, some of them in float64
_AGAIN = 0.5  # seconds after which code that swallowed the interruption is interrupted again


class TookTooLong(DoctorError):  # noqa: N818 (what happened, in words)
    """Code did not finish in time. `where` is the line of the user's code that was running, or None."""

    def __init__(self, seconds: float, where: Where | None) -> None:
        at = f" at {where}" if where else ""
        super().__init__(f"it did not finish within {_seconds(seconds)}{at}")
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
            with _unprinted(over):
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


@contextlib.contextmanager
def _unprinted(over: _Over) -> Iterator[None]:
    """Print nothing where the interruption meets a finalizer or the callback of a weak reference.

    Python prints an exception there and goes on. The timer interrupts the code itself a moment later.
    """
    outer = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs, /) -> None:
        if unraisable.exc_value is not over:
            outer(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = outer


def _seconds(seconds: float) -> str:
    shown = f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}".removesuffix(".0")
    return f"{shown} second" if shown == "1" else f"{shown} seconds"


def _where(frame: FrameType | None, limited: FrameType) -> Where | None:
    """The innermost line of the user's code that runs inside of `limited`; what is outside only called the doctor."""
    while frame is not None and frame is not limited:
        if is_users(frame.f_code.co_filename):
            return line_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


# --- Size ------------------------------------------------------------------------------------------------------------


class TooLarge(DoctorError):  # noqa: N818
    """A module holds, or is about to hold, more memory than the doctor can examine."""


def check_size(module: nn.Module, largest: float = LARGEST) -> None:
    """Raise `TooLarge` if the parameters and buffers of a module take more than `largest` bytes."""
    tensors = {id(x): (name, x) for name, x in itertools.chain(module.named_parameters(), module.named_buffers())}
    total = sum(_bytes(x) for _, x in tensors.values())
    if total > largest:
        name, tensor = max(tensors.values(), key=lambda each: _bytes(each[1]))
        raise _too_large(type(module).__name__, total, largest, f"{name} {list(tensor.shape)}")


@contextlib.contextmanager
def size_limit(subject: str, largest: float = LARGEST) -> Iterator[None]:
    """Raise `TooLarge` before a tensor or a module of more than `largest` bytes is filled inside the block.

    Memory is counted while a constructor runs: after it, it would be too late.
    """
    total = 0.0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        if isinstance(parameter, Tensor):
            total += _bytes(parameter)
            if total > largest:
                raise _too_large(
                    subject, total, largest, f"{type(module).__name__}.{name} {list(parameter.shape)}", least=True
                )

    handle = register_module_parameter_registration_hook(count)
    try:
        with _Allocations(subject, largest):
            yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, DoctorError) or not out_of_memory(error):
            raise
        asked = re.search(r"allocate (\d+) bytes", str(error))
        most = float(asked[1]) if asked else largest
        raise _too_large(subject, most, largest, "a tensor that does not fit into memory", least=True) from error
    finally:
        handle.remove()


class _Allocations(TorchFunctionMode):
    """Checks the size of every tensor that is made from sizes alone, before it is made.

    `torch.empty` only reserves memory, and its parameter is counted in time; the other functions fill the memory.
    """

    _MAKERS = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye)

    def __init__(self, subject: str, largest: float) -> None:
        super().__init__()
        self._subject, self._largest = subject, largest

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._MAKERS and str(kwargs.get("device")) != "meta":
            given = kwargs.get("size", args[0] if args else ())
            shape = tuple(given) if isinstance(given, list | tuple) else tuple(x for x in args if type(x) is int)
            if func is torch.eye:
                shape = (*shape, shape[0])[:2] if shape else ()
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            count = math.prod(shape) * dtype.itemsize
            if count > self._largest:
                raise _too_large(self._subject, count, self._largest, f"a tensor {list(shape)}", least=True)
        return func(*args, **kwargs)


def _too_large(subject: str, count: float, largest: float, most: str, *, least: bool = False) -> TooLarge:
    return TooLarge(
        f"{subject} is too large to be examined: it takes {'at least ' if least else ''}{size(count)} "
        f"(the largest part: {most}); expected at most {size(largest)}. Choose smaller sizes: the mistakes are the same"
    )


def size(count: float) -> str:
    """Bytes in a readable unit."""
    return f"{count / GIGABYTE:,.1f} GB" if count >= GIGABYTE else f"{count / 1e6:,.0f} MB"


def _bytes(tensor: Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.numel() * tensor.element_size()  # the size of a lazy one is not known yet


LONG = 512  # tokens: that so many take much memory says nothing about a module


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, says that memory ran out."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


# --- As findings -----------------------------------------------------------------------------------------------------


def alone(subject: str, finding: Finding) -> Diagnosis:
    """A diagnosis with only this finding, of code that did not return: nothing else is known about the module."""
    why = "code that does not return cannot be checked any further"
    return Diagnosis(subject=subject, findings=(finding,), unchecked={"everything else": why})


def hangs(seconds: float, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that code did not finish; `doing`: "forward", "the constructor of …", "the import of …"."""
    cure = "look at the loop, the lock or the wait at this line"
    if doing.startswith("the import"):
        cure = "put code that trains, serves or waits under if __name__ == '__main__':"
    return Finding(
        name="hangs",
        severity="bug",
        evidence=f"{doing} did not finish within {_seconds(seconds)}",
        fix=f"{cure}; if it is only slow, allow more time (--timeout)",
        where=where,
        numbers={"seconds": seconds},
    )


def crashes(how: str, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that code ends the process that calls it."""
    return Finding(
        name="crashes",
        severity="bug",
        evidence=f"{doing} did not return: {how}",
        fix="the code must not end the process: raise an error instead; if this line does not show the cause, run it "
        "alone under python -X faulthandler",
        where=where,
    )


def too_large(memory: float | None, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that code uses more than `memory` bytes or, if `memory` is None, all available memory."""
    most = "all available memory" if memory is None else f"more than {size(memory)} of memory"
    return Finding(
        name="too-large",
        severity="bug",
        evidence=f"{doing} took {most}, although the doctor's inputs are only a few tokens long",
        fix="look for a tensor whose size does not follow from the input's; if the module is just large, choose "
        "smaller sizes, or allow more memory (--memory)",
        where=where,
        numbers={} if memory is None else {"bytes": memory},
    )


def no_memory(error: BaseException, memory: float | None = None, doing: str = "forward") -> Finding:
    """The same finding for an error that `out_of_memory` recognises, with the line that asked for the memory."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return too_large(memory, last_line(error), doing)
