"""Limits for code that may not end: so much time, and modules that are small enough to be looked at.

with time_limit(10):
    module(x)          # raises TookTooLong, which knows the line that was running
"""

from __future__ import annotations

import contextlib
import itertools
import linecache
import math
import os
import re
import signal
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from headwise.doctor.finding import Finding, Where
from headwise.errors import DoctorError

GIGABYTE = 1e9
LARGEST = 2 * GIGABYTE  # of parameters: the doctor holds several copies, some of them in float64
UNASKED = "nothing more can be asked of code that does not come back"  # why nothing else was checked
_AGAIN = 0.5  # code that swallows the interruption is interrupted again after so many seconds


class TookTooLong(DoctorError):  # noqa: N818 (what happened, in words)
    """Code did not end in its time. `where` is the line of the user's code that was running, None if there was none."""

    def __init__(self, seconds: float, where: Where | None) -> None:
        at = f" at {where}" if where else ""
        super().__init__(f"it did not end within {_seconds(seconds)}{at}")
        self.seconds = seconds
        self.where = where

    def finding(self, doing: str = "forward") -> Finding:
        """The same as a finding, of what was being done: "forward", "the constructor", "the import"."""
        return hangs(self.seconds, self.where, doing)


def can_interrupt() -> bool:
    """Whether `time_limit` can do anything here: only the main thread, and not on Windows."""
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs inside after so many seconds, with `TookTooLong`. None: no limit.

    Limits may stand inside one another: the one that ends first is the one that raises. What is interrupted cannot stop
    that with `except Exception`. Code that never comes back to Python (a loop in C) is not interrupted; neither is
    anything where `can_interrupt()` is False. There a process of its own is the only way
    (`headwise.doctor.targets.isolate`).
    """
    if seconds is None or not can_interrupt():
        yield
        return
    if not (seconds > 0 and math.isfinite(seconds)):
        raise DoctorError(f"a time limit is a number of seconds above 0; received {seconds}")
    begun = time.monotonic()
    over = _Over()
    armed = True
    outer = signal.getsignal(signal.SIGALRM)
    outer_rest, outer_again = signal.getitimer(signal.ITIMER_REAL)

    def expire(number: int, frame: FrameType | None) -> None:
        if not armed:
            return
        if time.monotonic() - begun < seconds - 1e-3:  # it is the outer limit that ends
            if callable(outer):
                outer(number, frame)
            return
        over.where = over.where or _where(frame)
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
    """Not an Exception: code that tries one thing after another with `except Exception` must not swallow it."""

    where: Where | None = None


def _seconds(seconds: float) -> str:
    shown = f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}".removesuffix(".0")
    return f"{shown} second" if shown == "1" else f"{shown} seconds"


# --- Whose line ------------------------------------------------------------------------------------------------------

_HERE = Path(__file__).resolve().parents[1]  # the package: the doctor's own frames are nobody's mistake
_TORCH = Path(torch.__file__).resolve().parent
_STDLIB = Path(sysconfig.get_path("stdlib")).resolve()


def is_users(file: str) -> bool:
    """Whether a file is the user's, or of a library of models: not of headwise, torch or Python itself."""
    if file.startswith("<"):
        return False
    path = Path(file).resolve()
    if path.is_relative_to(_HERE) or path.is_relative_to(_TORCH):
        return False
    in_packages = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return in_packages or not path.is_relative_to(_STDLIB)


def line_of(file: str, line: int) -> Where:
    """A line as a `Where`, with its code; the file relative to the working directory if it is in it."""
    return Where(shown_path(file), line, linecache.getline(file, line).strip())


def shown_path(file: str | os.PathLike[str]) -> str:
    """A file as a person would type it: relative to the working directory if it is in it."""
    path = Path(file)
    with contextlib.suppress(ValueError, OSError):
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    return str(path)


def last_line(error: BaseException) -> Where | None:
    """The last line of the user's code that an error came by."""
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        if is_users(traceback.tb_frame.f_code.co_filename):
            found = line_of(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _where(frame: FrameType | None) -> Where | None:
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return line_of(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


# --- Size ------------------------------------------------------------------------------------------------------------


class TooLarge(DoctorError):  # noqa: N818
    """A module holds, or is about to hold, more than the doctor can look at."""


def check_size(module: nn.Module, largest: float = LARGEST) -> None:
    """Raise `TooLarge` if the parameters and buffers of a module take more than `largest` bytes."""
    tensors = {id(x): (name, x) for name, x in itertools.chain(module.named_parameters(), module.named_buffers())}
    total = sum(_bytes(x) for _, x in tensors.values())
    if total > largest:
        name, tensor = max(tensors.values(), key=lambda each: _bytes(each[1]))
        raise _too_large(type(module).__name__, total, largest, f"{name} {_shape(tensor.shape)}")


@contextlib.contextmanager
def size_limit(subject: str, largest: float = LARGEST) -> Iterator[None]:
    """Inside, a tensor or a module that would take more than `largest` bytes raises `TooLarge` before it is filled.

    What a constructor builds is counted while it builds it: afterwards it would be too late.
    """
    total = 0.0

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal total
        if isinstance(parameter, Tensor):
            total += _bytes(parameter)
            if total > largest:
                raise _too_large(
                    subject, total, largest, f"{type(module).__name__}.{name} {_shape(parameter.shape)}", least=True
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
        raise _too_large(subject, most, largest, "a tensor that the machine has no memory for", least=True) from error
    finally:
        handle.remove()


class _Allocations(TorchFunctionMode):
    """Looks at every tensor that is made from sizes alone before it is made.

    `empty` only reserves memory, so it would be found by its parameter in time; the others fill what they make.
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
                raise _too_large(self._subject, count, self._largest, f"a tensor {_shape(shape)}", least=True)
        return func(*args, **kwargs)


def _too_large(subject: str, count: float, largest: float, most: str, *, least: bool = False) -> TooLarge:
    return TooLarge(
        f"{subject} is too large to be examined: it takes {'at least ' if least else ''}{size(count)} "
        f"(the most: {most}); expected {size(largest)} at most. Choose smaller sizes: the mistakes are the same ones"
    )


def size(count: float) -> str:
    """Bytes as people read them."""
    return f"{count / GIGABYTE:,.1f} GB" if count >= GIGABYTE else f"{count / 1e6:,.0f} MB"


def _bytes(tensor: Tensor) -> int:
    if is_lazy(tensor):  # its size is not known yet
        return 0
    return tensor.numel() * tensor.element_size()


def _shape(shape: Any) -> str:
    return "[" + ", ".join(f"{x}" for x in shape) + "]"


def out_of_memory(error: BaseException | None) -> bool:
    """Whether an error, or one that led to it, says that there is no memory left."""
    while error is not None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


# --- As findings -----------------------------------------------------------------------------------------------------


def hangs(seconds: float, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that something did not end."""
    at_import = doing.startswith("the import")
    cure = "put what trains, serves or waits under if __name__ == '__main__':" if at_import else _UNHANG
    return Finding(
        name="hangs",
        severity="bug",
        evidence=f"{doing} did not end within {_seconds(seconds)}",
        mend=f"{cure}; if it only takes long, allow more time (--timeout)",
        where=where,
        numbers={"seconds": seconds},
    )


_UNHANG = "look at the loop, the lock or the wait at this line"


def crashes(how: str, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that something ends the process that calls it."""
    return Finding(
        name="crashes",
        severity="bug",
        evidence=f"{doing} did not come back: {how}",
        mend="code that is called must not end the process: raise an error instead; where this line does not show why, "
        "run it alone under python -X faulthandler",
        where=where,
    )


def too_large(memory: float | None, where: Where | None, doing: str = "forward") -> Finding:
    """The finding that something takes more memory than it may, or, where `memory` is None, than there is."""
    most = "all the memory that there is" if memory is None else f"more than {size(memory)} of memory"
    return Finding(
        name="too-large",
        severity="bug",
        evidence=f"{doing} took {most}, and the doctor's inputs are a few tokens long",
        mend="look for a tensor whose size does not follow from the input's; if the module is only big, choose smaller "
        "sizes, or allow more memory (--memory)",
        where=where,
        numbers={} if memory is None else {"bytes": memory},
    )


def no_memory(error: BaseException, memory: float | None = None, doing: str = "forward") -> Finding:
    """The same of an error that `out_of_memory` knows: with the line that asked for the memory."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return too_large(memory, last_line(error), doing)
