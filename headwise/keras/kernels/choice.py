"""Chooses the kernel for a call: the kernel that was asked for, or for "auto" the cheapest one."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from headwise.errors import KernelRefused
from headwise.keras import masking
from headwise.keras.call import Call, Tensor
from headwise.keras.kernels import banded, block_sparse, chunked, plain
from headwise.masks import Mask
from headwise.masks.block_sparse import BlockSparse
from headwise.masks.mask import And

KERNELS = ("plain", "chunked", "banded", "block_sparse")
BLOCK = 64
LONG = 2**28  # with more scores than this per example and head (1 GiB), "auto" takes the kernel `chunked`


def choose(call: Call, kernel: str) -> Callable[[Call], Tensor]:
    """Return the function that computes the call. KernelRefused if the kernel asked for cannot compute the call."""
    band, layout = _band(call), None
    if kernel == "block_sparse" or (kernel == "auto" and band is None):
        layout = _layout(call, only_blocks=kernel == "auto")
    why = None
    if kernel == "banded" and band is None:
        why = "computes windows with both ends, such as masks.window(64, 0)"
    elif kernel == "block_sparse" and layout is None:
        why = "needs a mask of headwise.masks, and lengths known before the call"
    if why is not None:
        received = f"attention_mask={call.mask!r}, Q={call.lengths[0]}, K={call.lengths[1]}"
        raise KernelRefused(f"kernel: {kernel} {why}. Received: {received}")
    if band is not None and (kernel == "banded" or (kernel == "auto" and _pays(call, band))):
        return lambda call: banded.run(call, *band)
    if layout is not None and (kernel == "block_sparse" or layout.mean() < 0.6):
        return lambda call: block_sparse.run(call, layout, _size(call.mask))
    if kernel == "chunked" or (kernel == "auto" and _is_long(call)):
        return chunked.run
    return lambda call: plain.run(call)[0]


def _band(call: Call) -> tuple[int, int] | None:
    """Return (lowest, highest) k - q that may be allowed, for a window, or a window & other masks; else None."""
    low, high = masking.reach(call.mask)
    return None if low == -math.inf or high == math.inf or low > high else (int(low), int(high))


def _pays(call: Call, band: tuple[int, int]) -> bool:
    """Return whether the kernel `banded` pays: a block of queries needs at most about half of all keys."""
    k_len = call.lengths[1]
    return k_len is None or (band[1] - band[0] + 1 + 2 * banded.block_size(*band)) * 2 <= k_len


def _layout(call: Call, *, only_blocks: bool) -> np.ndarray | None:
    """Return which blocks a block mask needs, or without `only_blocks` any mask of `headwise.masks`; None = unknown."""
    q_len, k_len = call.lengths
    if call.mask is None or q_len is None or k_len is None:
        return None
    parts = [part for part in _parts(call.mask) if not masking.has_tables(part)]
    if not parts or (only_blocks and not any(isinstance(part, BlockSparse) for part in parts)):
        return None
    known = parts[0] if len(parts) == 1 else And(tuple(parts))
    return block_sparse.compute_layout(known, q_len, k_len, _size(known))


def _size(mask: Mask | None) -> int:
    """Return the size of the blocks of the mask if it is a block mask, else 64."""
    sizes = [part.block_size for part in _parts(mask) if isinstance(part, BlockSparse)]
    return min(sizes) if sizes else BLOCK


def _parts(mask: Mask | None) -> tuple[Mask, ...]:
    return () if mask is None else mask.conjuncts


def _is_long(call: Call) -> bool:
    q_len, k_len = call.lengths
    # (JAX uses symbols for unknown sizes.)
    return isinstance(q_len, int) and isinstance(k_len, int) and q_len * k_len > LONG
