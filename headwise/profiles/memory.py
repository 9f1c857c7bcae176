"""Gives back memory that a batch needed, so that a run of hours needs no more than one of seconds."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable


def give_back() -> None:
    """Free what batches left behind.

    What a watch recorded is in cycles, which Python leaves until there are many. And glibc keeps what was freed between
    tensors of other sizes: over 260,000 tokens of MiniLM 850 MB instead of 520.
    """
    gc.collect()
    if (trim := _trim()) is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    """`malloc_trim` of glibc; None where the C library has none."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # macOS, musl; Windows
        return None
    return found
