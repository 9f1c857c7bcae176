"""Computes statistics of attention weights on a GPU without storing the weights, as `headwise.native.attend.look` does.

It makes two passes over the blocks of the score matrix in which the mask allows something. A pass computes one matrix
product per block; attention computes two.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headwise.call import Scores
from headwise.masks import Mask
from headwise.native.attend import watcher
from headwise.native.sight import BLOCKS, SIZE, find_sight

ANSWERS = frozenset({"highest", "log_sum", "entropy", "distance", "received"})  # of headwise.native.attend.ANSWERS
OPTIONS = frozenset({"slopes", "softcap", "sinks", "dropout"})  # the statistics are of the weights before dropout
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DEVICES = ("cuda",)
WIDEST = 128  # dimension of a head: a block of queries and a block of keys must fit into shared memory
LEAST = (8, 0)  # compute capability


def refuse(call: Scores) -> str | None:
    """Return why these kernels cannot compute the statistics of a call; None if they can."""
    if call.q.device.type not in DEVICES:
        return f"they run on CUDA (the call is on {call.q.device})"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if call.q.dtype not in DTYPES or call.k.dtype != call.q.dtype:
        return f"they have no {str(call.k.dtype).removeprefix('torch.')}"
    if call.q.device.type == "cuda" and torch.cuda.get_device_capability(call.q.device) < LEAST:
        return f"they are for GPUs of compute capability {LEAST[0]}.{LEAST[1]} and above"
    if (unknown := call.beyond(OPTIONS)) is not None:
        return f"they have no {unknown}"
    if 0 in call.shape or not 0 < call.q.shape[3] <= WIDEST:
        return f"they are for heads of 1 to {WIDEST} and some queries and keys"
    if (why := watcher(call)) is not None:
        return f"{why} would not see what they do"
    return None


class Blocks(NamedTuple):
    """A mask in the form that the kernels read; see `headwise.native.sight`. Tensors are on the call's device."""

    kind: int
    low: int
    high: int
    matrix: Tensor  # int64 [B|1, H|1]: the index of the first tile (64 rows) of the mask of each example and head
    first: Tensor  # int64 [tiles + 1]: the index in `blocks` of each tile's first block
    blocks: Tensor  # int64 [blocks, 2]: which tile of the other side, the index of its first word or -1 = all allowed
    words: Tensor  # int64 [masked blocks · 64]: the bits of each partly allowed block, a word for each query


def look(call: Scores, names: Collection[str]) -> dict[str, Tensor]:
    """Compute the statistics `names` (of `ANSWERS`) of a call: float32 [B, H, Q] each, but "received" is [B, H, K].

    The call must be one for which `refuse` returns None.
    """
    from headwise.gpu import kernels

    batch, heads, q_len, k_len = call.shape
    device = call.q.device
    rows = {
        name: torch.empty(batch, heads, q_len, dtype=torch.float32, device=device)
        for name in ("highest", "log_sum", "entropy", "distance")
    }
    sinks, slopes = (x if x is None else x.float().contiguous() for x in (call.sinks, call.slopes))
    nothing = rows["highest"]  # passed in place of tensors that the kernel does not read
    width = max(16, 1 << (call.q.shape[3] - 1).bit_length())
    numbers = (float(call.scale), float(call.softcap or 1.0))
    sizes = (heads, call.heads_per_key_head, q_len, k_len, call.q.shape[3])
    flags = {"CAPPED": call.softcap is not None, "SLOPED": slopes is not None, "WIDTH": width}
    flags["num_stages"] = 1 if call.q.dtype == torch.float32 else 2  # blocks of keys in shared memory
    strides = (*call.q.stride(), *call.k.stride())
    with torch.cuda.device(device) if device.type == "cuda" else torch.no_grad():
        seen, at = _blocks(call.mask, q_len, k_len, device, by_keys=False)
        kernels.of_rows[-(-q_len // SIZE), batch * heads](
            *(call.q, call.k, nothing if slopes is None else slopes, nothing if sinks is None else sinks),
            *(seen.matrix, seen.first, seen.blocks, seen.words, *rows.values(), *strides, *at),
            *(*numbers, seen.low, seen.high, *sizes),
            **{"KIND": seen.kind, "SINKS": sinks is not None, **flags},
        )
        if "received" in names:
            rows["received"] = torch.empty(batch, heads, k_len, dtype=torch.float32, device=device)
            seen, at = _blocks(call.mask, q_len, k_len, device, by_keys=True)
            kernels.of_keys[-(-k_len // SIZE), batch * heads](
                *(call.q, call.k, nothing if slopes is None else slopes, seen.matrix, seen.first, seen.blocks),
                *(seen.words, rows["highest"], rows["log_sum"], rows["received"], *strides, *at),
                *(*numbers, seen.low, seen.high, *sizes),
                **{"KIND": seen.kind, **flags},
            )
    return {name: rows[name] for name in names}


def _blocks(
    mask: Mask | None, q_len: int, k_len: int, device: torch.device, *, by_keys: bool
) -> tuple[Blocks, tuple[int, int]]:
    """Return the mask by tiles of queries, or of keys (`by_keys`), and its strides; the mask object remembers them."""
    if mask is None:
        found = _made(mask, q_len, k_len, device, by_keys)
    else:
        at = ("gpu", q_len, k_len, str(device), by_keys)
        found = mask.remember(at, lambda mask: _made(mask, q_len, k_len, device, by_keys))
    batch, heads = found.matrix.shape
    return found, (heads if batch > 1 else 0, 1 if heads > 1 else 0)


def _made(mask: Mask | None, q_len: int, k_len: int, device: torch.device, by_keys: bool) -> Blocks:
    sight = find_sight(mask, q_len, k_len)

    def there(x: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.int64)).to(device)

    if sight.runs is None:
        low, high = (-q_len, k_len) if mask is None else (sight.low, sight.high)
        none = torch.zeros(1, 1, dtype=torch.int64, device=device)
        return Blocks(sight.kind, low, high, none, none, none, none)
    matrix, tiles_of_runs, runs, words = sight.runs
    first, of = runs[tiles_of_runs, 0], np.repeat(np.arange(len(runs) - 1), np.diff(runs[:, 0]))
    blocks = np.stack([runs[of, 1] + np.arange(len(of)) - runs[of, 0], runs[of, 2]], 1)
    if by_keys:
        tiles = -(-q_len // SIZE)
        owner, wide = np.repeat(np.arange(len(first) - 1), np.diff(first)), -(-k_len // SIZE)
        column = owner // tiles * wide + blocks[:, 0]  # the tile of keys, counted over all matrices
        order = np.argsort(column, kind="stable")
        first = np.concatenate([[0], np.bincount(column, minlength=matrix.size * wide).cumsum()])
        blocks = np.stack([owner % tiles, blocks[:, 1]], 1)[order]
        matrix = matrix // tiles * wide
    empty = np.zeros(SIZE, np.int64)  # the first words are read even if no block needs any
    parts = (first, blocks if len(blocks) else empty, words.ravel() if words.size else empty)
    return Blocks(BLOCKS, 0, 0, there(matrix), *map(there, parts))
