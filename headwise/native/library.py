"""The compiled library: whether it is there, which instruction set it uses, and its functions by ctypes.

ctypes rather than an extension module: one library then serves every version of Python and of torch, and a call, which
passes one pointer, takes two microseconds. It releases the GIL.

torch is not imported here: `headwise --version` asks which instruction set is used.
"""

from __future__ import annotations

import ctypes
import functools
import os

from headwise.errors import ArgumentError
from headwise.native.build import FOLDER, NAME

VARIABLE = "HEADWISE_NATIVE"  # an instruction set, or "off"
AGAIN = f"python {FOLDER / 'build.py'}"


@functools.cache
def _found() -> tuple[ctypes.CDLL | None, str]:
    """The library; or None, and why there is none."""
    asked, path = os.environ.get(VARIABLE, ""), FOLDER / NAME
    if asked == "off":
        return None, f"{VARIABLE} is off"
    if not path.exists():
        return None, f"they were not compiled; with a C++17 compiler, such as g++, run: {AGAIN}"
    try:
        loaded = ctypes.CDLL(str(path))
        loaded.hw_isa_name.restype = loaded.hw_error.restype = ctypes.c_char_p
        for function in (loaded.hw_isa_here, loaded.hw_isa_use, loaded.hw_isa_used):
            function.restype = ctypes.c_int64
        for function in (loaded.hw_isa_name, loaded.hw_isa_here, loaded.hw_isa_use, loaded.hw_error):
            function.argtypes = [ctypes.c_int64]
        for function in (loaded.hw_attention_forward, loaded.hw_attention_backward, loaded.hw_attention_look):
            function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int64
    except (OSError, AttributeError) as cause:  # built for another machine, or from other sources
        return None, f"they cannot be loaded; with a C++17 compiler, such as g++, run: {AGAIN}. The reason: {cause}"
    if asked:
        _use(loaded, asked)
    return loaded, ""


def library() -> ctypes.CDLL | None:
    """The library, on the instruction set of HEADWISE_NATIVE or the machine's best; None if it is not to be had.

    Raises:
        ArgumentError: HEADWISE_NATIVE names none that this machine has.
    """
    return _found()[0]


def missing() -> str | None:
    """Why there is no library; None if there is one."""
    return _found()[1] or None


def instruction_sets(loaded: ctypes.CDLL | None = None) -> list[str]:
    """Those that this machine has, from the plainest; [] without the library."""
    loaded = loaded or library()
    if loaded is None:
        return []
    names, which = [], 0
    while (name := loaded.hw_isa_name(which)) is not None:
        if loaded.hw_isa_here(which):
            names.append(name.decode())
        which += 1
    return names


def instruction_set() -> str | None:
    """The one in use; None without the library."""
    loaded = library()
    return None if loaded is None else loaded.hw_isa_name(loaded.hw_isa_used()).decode()


def use(name: str) -> None:
    """Take an instruction set from now on. Raises ArgumentError if the machine or the library lacks it."""
    loaded = library()
    if loaded is None:
        raise ArgumentError(f"{VARIABLE}: {name!r} cannot be used, the native kernels are off: {missing()}")
    _use(loaded, name)


def _use(loaded: ctypes.CDLL, name: str) -> None:
    which = 0
    while (found := loaded.hw_isa_name(which)) is not None and found.decode() != name:
        which += 1
    if found is None or loaded.hw_isa_use(which):
        here = ", ".join([*instruction_sets(loaded), "off"])
        raise ArgumentError(f"{VARIABLE}: expected one of {here}, which this machine has. Received: {name!r}")
