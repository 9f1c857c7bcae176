"""The speeds of this machine: measured by `headwise bench --calibrate` and stored in a file, or nominal (built in).

The plan compares kernels by these speeds. The file is read once in a process, when the first call is planned.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import platform
import sys
import warnings
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

from headwise.errors import ArgumentError
from headwise.files import parsed, writing
from headwise.native.library import instruction_set
from headwise.scope import within

VARIABLE = "HEADWISE_SPEEDS"  # names another file, or "off"
BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)  # the errors of reading a file of any content


@dataclasses.dataclass(frozen=True)
class Machine:
    """The speeds of a machine for calls of one dtype, from which `Cost.time` is computed."""

    flops: float  # per second, of a kernel whose share is 1
    bytes: float  # per second, from and to memory
    call: float  # seconds that one call into torch takes
    product: float  # FLOP/s of a large matrix product in the dtype of the call
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)  # shares of `flops`, of measured kernels
    is_measured: bool = False

    def time(self, flops: int, bytes_: int, *, share: float = 1.0, calls: int = 1) -> float:
        """Return the seconds that this work takes, with the matrix products at a `share` of the full speed."""
        return flops / (share * self.flops) + bytes_ / self.bytes + calls * self.call

    @classmethod
    def measured(cls, product: float, bytes: float, call: float, shares: Mapping[str, float]) -> Machine:
        """Make a machine from measured numbers. Raises ValueError or TypeError for anything but positive numbers."""
        if not all(0.0 < x < math.inf for x in (product, bytes, call, *shares.values())):
            raise ValueError("a speed is not a positive number")
        return cls(product, bytes, call, product, shares, is_measured=True)


Speeds = Mapping[str, Machine]  # by the `kind` of a call

# Nominal speeds: two cores with AVX-512; in half precision with AMX or AVX-512-BF16.
CPU = Machine(flops=1.6e11, bytes=1.5e10, call=15e-6, product=2.3e11)
CPU_HALF = dataclasses.replace(CPU, flops=3e11, product=4.5e11)
CUDA = Machine(flops=1e14, bytes=1e12, call=10e-6, product=1.4e14)
CUDA_HALF = dataclasses.replace(CUDA, flops=4.5e14, bytes=2e12, product=6e14)  # an H100

_given: ContextVar[Speeds | None] = ContextVar("headwise_speeds", default=None)


@functools.cache  # each call asks several times
def kind(dtype: torch.dtype, trains: bool) -> str:
    """Return the name under which the speeds for such calls are stored: "float32", "float32, training", …"""
    return str(dtype).removeprefix("torch.") + (", training" if trains else "")


def of_cpu(dtype: torch.dtype, trains: bool) -> Machine:
    """Return the speeds for calls of a dtype: measured if the file has them, nominal otherwise."""
    return here().get(kind(dtype, trains)) or (CPU_HALF if dtype.itemsize == 2 else CPU)


def here() -> Speeds:
    """Return the measured speeds of this machine, by the `kind` of a call; {} if nothing was measured."""
    given = _given.get()
    return _read(torch.get_num_threads()) if given is None else given


def using(speeds: Speeds) -> contextlib.AbstractContextManager[None]:
    """Return a context inside which these speeds are used instead of those in the file."""
    return within(_given, speeds)


def key() -> str:
    """Return the key of this machine's speeds in the file: a text of processor, threads, instruction set and torch."""
    cores, threads = os.cpu_count(), torch.get_num_threads()
    about = f"{processor()}, CPUs: {cores}, threads: {threads}, native kernels: {instruction_set() or 'none'}"
    return f"{about}, torch {torch.__version__}"


def processor() -> str:
    """Return the name of the processor."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def file() -> Path | None:
    """Return the path of the file with the speeds; None if HEADWISE_SPEEDS is off.

    It is the path that HEADWISE_SPEEDS names, or else speeds.json in the user's settings folder.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked == "off":
        return None
    return Path(asked) if asked else _settings() / "headwise" / "speeds.json"


def _settings() -> Path:
    """Return the user's settings folder, as `click.get_app_dir` does: an installation of the core may lack click."""
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA", Path.home()))
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_CONFIG_HOME", Path.home() / ".config"))


def stored() -> dict[str, Any]:
    """Read the file of speeds: entries by `key()`; {} if there is no file. Raises one of BROKEN for other content."""
    path = file()
    if path is None or not path.exists():
        return {}
    content = parsed(json.loads, path.read_text(encoding="utf-8"))
    for entry in content.values():
        read_speeds(entry)
    return dict(content)


def read_speeds(entry: Mapping[str, Any]) -> Speeds:
    """Make the speeds from an entry of the file."""
    return {name: Machine.measured(**given) for name, given in entry["speeds"].items()}


def store(speeds: Speeds | None) -> Path:
    """Store the speeds of this machine in place of older ones; None = remove them. Returns the path of the file.

    Raises ArgumentError if HEADWISE_SPEEDS is off, and FileError if the file cannot be written.
    """
    path = file()
    if path is None:
        raise ArgumentError(f"{VARIABLE} is 'off', so no speeds are kept. Unset it, or let it name a file")
    content: dict[str, Any] = {}
    with contextlib.suppress(*BROKEN):
        content = stored()
    content.pop(key(), None)
    if speeds is not None:
        fields = ("product", "bytes", "call", "shares")
        machines = {name: {field: getattr(each, field) for field in fields} for name, each in speeds.items()}
        content[key()] = {"measured": str(datetime.date.today()), "speeds": machines}
    with contextlib.suppress(OSError):  # writing reports what is wrong
        path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path) as part:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    forget()
    return path


def forget() -> None:
    """Forget the speeds that were read: the file is read again when they are next needed."""
    _read.cache_clear()


@functools.cache
def _read(threads: int) -> Speeds:
    try:
        content = stored()
        return read_speeds(content[key()]) if content and key() in content else {}
    except BROKEN as error:
        warnings.warn(
            f"{file()} cannot be read, so plans reckon with nominal speeds: expected what "
            f"`headwise bench --calibrate` writes. Received: {error!r}. Run it again, or remove the file",
            stacklevel=2,
        )
        return {}
