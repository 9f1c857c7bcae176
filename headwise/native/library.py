"""Loads the compiled library: whether it exists, which instruction set it uses, and its functions by ctypes.

The library is called by ctypes; it is no extension module, so that one file fits every version of Python and torch.
Calling a function, with one pointer as argument, takes two microseconds and releases the GIL.

torch is not imported here: `headwise --version` asks which instruction set is used.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from pathlib import Path

from headwise.errors import ArgumentError
from headwise.native.build import FOLDER, NAME, interface

VARIABLE = "HEADWISE_NATIVE"  # an instruction set, or "off"
THREADS = "HEADWISE_THREADS"  # "own", or the threads of torch
AGAIN = f"python {FOLDER / 'build.py'}"


@functools.cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    """Load the library; return (the library or None, the reason why there is none)."""
    asked, path = os.environ.get(VARIABLE, ""), FOLDER / NAME
    if asked == "off":
        return None, f"{VARIABLE} is off"
    if not path.exists():
        return None, f"they were not compiled; with a C++17 compiler, such as g++, run: {AGAIN}"
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.hw_isa_name.restype = loaded.hw_error.restype = ctypes.c_char_p
        more = (loaded.hw_isa_use, loaded.hw_isa_used, loaded.hw_strip)
        for function in (loaded.hw_interface, loaded.hw_isa_here, *more):
            function.restype = ctypes.c_int64
        for function in (loaded.hw_isa_name, loaded.hw_isa_here, loaded.hw_isa_use, loaded.hw_error):
            function.argtypes = [ctypes.c_int64]
        others = (loaded.hw_linear_forward, loaded.hw_encoder_forward, loaded.hw_decoder_step, loaded.hw_dropout_of)
        attention = (loaded.hw_attention_forward, loaded.hw_attention_backward, loaded.hw_attention_look)
        for function in (*attention, *others):
            function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int64
        loaded.hw_threads_of.argtypes, loaded.hw_threads_of.restype = [ctypes.c_void_p], None
        if loaded.hw_interface() != interface():
            raise OSError("they were compiled from another headwise.h")
    except (OSError, AttributeError) as cause:  # built for another machine, or from other sources
        return None, f"they cannot be loaded; with a C++17 compiler, such as g++, run: {AGAIN}. The reason: {cause}"
    if asked:
        _use(loaded, asked)
    return loaded, ""


def library() -> ctypes.CDLL | None:
    """Return the library, or None if there is none. It uses HEADWISE_NATIVE, or the machine's best instruction set.

    Raises:
        ArgumentError: HEADWISE_NATIVE names an instruction set that this machine lacks.
    """
    return _found()[0]


def missing() -> str | None:
    """Return why there is no library, as a phrase for a message; None if there is a library."""
    return _found()[1] or None


def share_threads(folder: Path) -> None:
    """Let the library use the threads of the OpenMP runtime that torch has loaded from this folder, if there is one.

    After an operation of torch, torch's threads stay awake for some milliseconds, in case there is more work. Other
    threads would get only half of each core. On Linux only: elsewhere, after a fork, and with HEADWISE_THREADS=own the
    library uses its own threads.
    """
    loaded, maps = library(), Path("/proc/self/maps")
    if loaded is None or os.environ.get(THREADS) == "own" or not maps.exists():
        return
    found = {line.split()[-1] for line in maps.read_text().splitlines() if "omp" in line.rpartition("/")[2]}
    for path in sorted(found, key=lambda path: not path.startswith(str(folder))):
        with contextlib.suppress(OSError, AttributeError):
            parallel = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY).GOMP_parallel
            loaded.hw_threads_of(ctypes.cast(parallel, ctypes.c_void_p))
            return


def instruction_sets(loaded: ctypes.CDLL | None = None) -> list[str]:
    """List the names of the instruction sets that this machine has, from the plainest; [] without the library."""
    loaded = loaded or library()
    return [] if loaded is None else [name for which, name in enumerate(_names(loaded)) if loaded.hw_isa_here(which)]


def _names(loaded: ctypes.CDLL) -> list[str]:
    """List the names of all instruction sets for which the library was compiled."""
    names: list[str] = []
    while (name := loaded.hw_isa_name(len(names))) is not None:
        names.append(name.decode())
    return names


def instruction_set() -> str | None:
    """Return the name of the instruction set in use; None without the library."""
    loaded = library()
    return None if loaded is None else loaded.hw_isa_name(loaded.hw_isa_used()).decode()


def use(name: str) -> None:
    """Use an instruction set from now on. Raises ArgumentError if the machine or the library lacks it."""
    loaded = library()
    if loaded is None:
        raise ArgumentError(f"{VARIABLE}: {name!r} cannot be used, the native kernels are off: {missing()}")
    _use(loaded, name)


def _use(loaded: ctypes.CDLL, name: str) -> None:
    names = _names(loaded)
    if name not in names or loaded.hw_isa_use(names.index(name)):
        here = ", ".join([*instruction_sets(loaded), "off"])
        raise ArgumentError(f"{VARIABLE}: expected one of {here}, which this machine has. Received: {name!r}")
