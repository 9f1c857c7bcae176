"""A kernel that skips each block of the score matrix in which the mask allows no pair of query and key.

Its cost grows with the number of other blocks. It needs a mask of `headwise.masks` and lengths known before the call,
because the blocks are found before the call.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from keras import ops

from headwise.errors import ArgumentError
from headwise.keras.call import Call, Tensor, attend
from headwise.keras.kernels.banded import in_blocks
from headwise.masks import Mask


def compute_layout(mask: Mask, q_len: int, k_len: int, size: int) -> np.ndarray:
    """Find the blocks in which the mask allows a pair in some example and head: bool [⌈Q/size⌉, ⌈K/size⌉]."""
    return np.asarray(mask.blocks(q_len, k_len, size).amax(dim=(0, 1)).cpu().numpy() > 0)


def run(call: Call, layout: np.ndarray, size: int) -> Tensor:
    """Compute the output [B, H, Q, E]; blocks of queries that need similar numbers of key blocks run together."""
    call = call.usable()
    q_len, k_len = call.lengths
    if q_len is None or k_len is None:
        raise ArgumentError(
            "block_sparse: expected lengths that are known before the call. Received: an unknown length"
        )
    pairs = ((call.q, q_len), (call.k, k_len), (call.v, k_len))
    q, k, v = (in_blocks(x, length, 0, -(-length // size), size) for x, length in pairs)
    alike: dict[int, list[int]] = defaultdict(list)
    for i, needed in enumerate(layout.sum(1)):
        # To have few groups, a block of queries may compute up to a quarter more blocks of keys than it needs.
        step = max(1, 1 << max(0, int(needed).bit_length() - 3))
        alike[min(-(-int(needed) // step) * step, layout.shape[1])].append(i)
    steps = np.arange(size, dtype=np.int32)
    order, outs = [], []
    for needed, blocks in sorted(alike.items()):
        order += blocks
        if needed == 0:
            shape = (ops.shape(call.q)[0], call.q.shape[1], len(blocks), size, call.v.shape[3])
            outs.append(ops.zeros(shape, dtype=call.v.dtype))
            continue
        # The needed blocks of keys come first; the additional blocks are masked.
        chosen = np.argsort(~layout[blocks], axis=1, kind="stable")[:, :needed]
        real = np.take_along_axis(layout[blocks], chosen, axis=1)
        rows = np.asarray(blocks, dtype=np.int32)[:, None] * size + steps
        cols = (chosen[..., None] * size + steps).reshape(len(blocks), -1).astype(np.int32)
        valid = np.repeat(real, size, axis=1) & (cols < k_len)
        kv = [ops.take(x, ops.convert_to_tensor(chosen.reshape(-1).astype(np.int32)), axis=2) for x in (k, v)]
        kv = [ops.reshape(x, (-1, x.shape[1], len(blocks), needed * size, x.shape[4])) for x in kv]
        own = ops.take(q, ops.convert_to_tensor(np.asarray(blocks, dtype=np.int32)), axis=2)
        at = [ops.convert_to_tensor(np.minimum(x, n - 1)) for x, n in ((rows, q_len), (cols, k_len))]
        outs.append(attend(call, own, *kv, *at, valid=ops.convert_to_tensor(valid))[0])
    out = outs[0] if len(outs) == 1 else ops.concatenate(outs, axis=2)
    if order != sorted(order):
        out = ops.take(out, ops.convert_to_tensor(np.argsort(order).astype(np.int32)), axis=2)
    return ops.reshape(out, (-1, call.q.shape[1], out.shape[2] * size, call.v.shape[3]))[:, :, :q_len]
