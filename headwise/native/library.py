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


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, on the instruction set of HEADWISE_NATIVE or the machine's best; None if it is off or not built.

    Raises:
        ArgumentError: HEADWISE_NATIVE names none that this machine has.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked == "off" or not (FOLDER / NAME).exists():
        return None
    try:
        loaded = ctypes.CDLL(str(FOLDER / NAME))
    except OSError:  # built on another machine
        return None
    loaded.hw_isa_name.restype = loaded.hw_error.restype = ctypes.c_char_p
    for function in (loaded.hw_isa_here, loaded.hw_isa_use, loaded.hw_isa_used):
        function.restype = ctypes.c_int64
    for function in (loaded.hw_isa_name, loaded.hw_isa_here, loaded.hw_isa_use, loaded.hw_error):
        function.argtypes = [ctypes.c_int64]
    for function in (loaded.hw_attention_forward, loaded.hw_attention_backward, loaded.hw_attention_look):
        function.argtypes, function.restype = [ctypes.c_char_p], ctypes.c_int64
    if asked:
        _use(loaded, asked)
    return loaded


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


def is_here() -> bool:
    """Whether there is a library."""
    return library() is not None


def instruction_set() -> str | None:
    """The one in use; None without the library."""
    loaded = library()
    return None if loaded is None else loaded.hw_isa_name(loaded.hw_isa_used()).decode()


def use(name: str) -> None:
    """Take an instruction set from now on. Raises ArgumentError if the machine or the library lacks it."""
    loaded = library()
    if loaded is None:
        raise ArgumentError(f"{VARIABLE}: the native kernels are not here, so {name!r} cannot be used")
    _use(loaded, name)


def _use(loaded: ctypes.CDLL, name: str) -> None:
    which = 0
    while (found := loaded.hw_isa_name(which)) is not None and found.decode() != name:
        which += 1
    if found is None or loaded.hw_isa_use(which):
        here = ", ".join([*instruction_sets(loaded), "off"])
        raise ArgumentError(f"{VARIABLE}: expected one of {here}, which this machine has. Received: {name!r}")
