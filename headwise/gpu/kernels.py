"""The Triton kernels of the statistics. Each program computes 64 queries or 64 keys of one head; `look.py` starts them.

This module imports triton, so it is imported where a kernel runs. With `TRITON_INTERPRET=1` that may be the CPU.
"""

# mypy: ignore-errors
# (An argument of a kernel may have no annotation but tl.constexpr.)

from __future__ import annotations

import triton
import triton.language as tl

SIZE = tl.constexpr(64)  # the size of a block, as in headwise.native.sight
EMPTY = tl.constexpr(float("-inf"))
BLOCKS = tl.constexpr(2)  # the KIND of a mask that is given as blocks with bits; any other KIND is a band


@triton.jit
def _scores(
    q, k, rows, keys, offset, scale, cap, slope,
    CAPPED: tl.constexpr, SLOPED: tl.constexpr,
):  # fmt: skip
    """Compute the scores of 64 queries [64, D] and 64 keys [D, 64], without the mask: float32 [64, 64]."""
    s = tl.dot(q, k, input_precision="ieee") * scale
    if CAPPED:
        s = cap * (2.0 * tl.sigmoid(2.0 * s / cap) - 1.0)  # tanh
    if SLOPED:
        s -= slope * tl.abs(rows[:, None] + offset - keys[None, :]).to(tl.float32)
    return s


@triton.jit
def _allowed(words, at, rows, keys, low, high, Q, K, KIND: tl.constexpr):
    """Return which pairs of a 64 × 64 block exist and are allowed. `at`: index of its mask bits; -1 = all allowed."""
    there = (rows[:, None] < Q) & (keys[None, :] < K)
    if KIND == BLOCKS:
        i = tl.arange(0, SIZE)
        word = tl.where(at >= 0, tl.load(words + tl.maximum(at, 0) + i), -1)  # -1: all bits
        return there & (((word[:, None] >> i[None, :].to(tl.int64)) & 1) == 1)
    apart = keys[None, :] - rows[:, None]
    return there & (apart >= low) & (apart <= high)


@triton.jit
def of_rows(
    q, k, slopes, sinks, matrix, first, blocks, words, highest, log_sum, entropy, distance,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, matrix_b, matrix_h,
    scale, cap, low, high, H, SHARED, Q, K, D,
    KIND: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, SINKS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute highest, log_sum, entropy and distance of the weights of 64 queries, float32 [B, H, Q], in one pass."""
    tile = tl.program_id(0)
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    i, d = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    rows = tile * SIZE + i
    at_q = b * q_b + h * q_h + rows[:, None].to(tl.int64) * q_n + d[None, :] * q_d
    queries = tl.load(q + at_q, mask=(rows[:, None] < Q) & (d[None, :] < D), other=0.0)
    at_k = k + b * k_b + (h // SHARED) * k_h
    offset = K - Q
    slope = tl.load(slopes + h) if SLOPED else 0.0
    top = tl.full([SIZE], EMPTY, tl.float32)  # the highest score so far
    total = tl.zeros([SIZE], tl.float32)  # Σ exp(s - top)
    spread = tl.zeros([SIZE], tl.float32)  # Σ exp(s - top) (s - top)
    far = tl.zeros([SIZE], tl.float32)  # Σ exp(s - top) |i - j|
    if KIND == BLOCKS:
        here = tl.load(matrix + b * matrix_b + h * matrix_h) + tile
        begin, end = tl.load(first + here), tl.load(first + here + 1)
    else:
        begin = tl.maximum(tile * SIZE + low, 0) // SIZE
        end = tl.cdiv(tl.maximum(tl.minimum(tile * SIZE + SIZE + high, K), 0), SIZE)
    for n in range(begin, end):
        number, at = n, n
        if KIND == BLOCKS:
            number, at = tl.load(blocks + 2 * n), tl.load(blocks + 2 * n + 1)
        keys = number * SIZE + i
        inside = (keys[None, :] < K) & (d[:, None] < D)
        values = tl.load(at_k + keys[None, :].to(tl.int64) * k_n + d[:, None] * k_d, mask=inside, other=0.0)
        allowed = _allowed(words, at, rows, keys, low, high, Q, K, KIND)
        s = _scores(queries, values, rows, keys, offset, scale, cap, slope, CAPPED, SLOPED)
        now = tl.maximum(top, tl.max(tl.where(allowed, s, EMPTY), 1))
        base = tl.where(now == EMPTY, 0.0, now)
        above = tl.where(allowed, s - base[:, None], 0.0)
        weights = tl.where(allowed, tl.exp(above), 0.0)
        fall = tl.where(top == EMPTY, 0.0, top - base)
        shrink = tl.where(top == EMPTY, 0.0, tl.exp(fall))
        spread = shrink * (spread + total * fall) + tl.sum(weights * above, 1)
        far = shrink * far + tl.sum(weights * tl.abs(rows[:, None] + offset - keys[None, :]).to(tl.float32), 1)
        total = shrink * total + tl.sum(weights, 1)
        top = now
    base = tl.where(top == EMPTY, 0.0, top)
    if SINKS:  # a sink counts as a key of this score
        sink = tl.load(sinks + h).to(tl.float32)
        most = tl.maximum(top, sink)
        base = tl.where(most == EMPTY, 0.0, most)
        fall = tl.where(top == EMPTY, 0.0, top - base)
        shrink = tl.where(top == EMPTY, 0.0, tl.exp(fall))
        below = tl.where(sink == EMPTY, 0.0, sink - base)
        weight = tl.where(sink == EMPTY, 0.0, tl.exp(below))
        spread = shrink * (spread + total * fall) + weight * below
        far, total = shrink * far, shrink * total + weight
    there = total > 0.0
    safe = tl.where(there, total, 1.0)
    out, inside = tl.program_id(1).to(tl.int64) * Q + rows, rows < Q
    tl.store(highest + out, base, mask=inside)
    tl.store(log_sum + out, tl.where(there, tl.log(safe), EMPTY), mask=inside)
    tl.store(entropy + out, tl.where(there, tl.maximum(tl.log(safe) - spread / safe, 0.0), 0.0), mask=inside)
    tl.store(distance + out, far / safe, mask=inside)


@triton.jit
def of_keys(
    q, k, slopes, matrix, first, blocks, words, highest, log_sum, received,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, matrix_b, matrix_h,
    scale, cap, low, high, H, SHARED, Q, K, D,
    KIND: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute the sum of the weights that each of 64 keys receives from all queries, float32 [B, H, K].

    It needs `highest` and `log_sum` of all queries, from `of_rows`. `blocks` lists, for each tile of 64 keys, the tiles
    of 64 queries with which it has a block.
    """
    tile = tl.program_id(0)
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    i, d = tl.arange(0, SIZE), tl.arange(0, WIDTH)
    keys = tile * SIZE + i
    at_k = b * k_b + (h // SHARED) * k_h + keys[None, :].to(tl.int64) * k_n + d[:, None] * k_d
    values = tl.load(k + at_k, mask=(keys[None, :] < K) & (d[:, None] < D), other=0.0)
    at_q = q + b * q_b + h * q_h
    of_head = tl.program_id(1).to(tl.int64) * Q
    slope = tl.load(slopes + h) if SLOPED else 0.0
    found = tl.zeros([SIZE], tl.float32)
    if KIND == BLOCKS:
        here = tl.load(matrix + b * matrix_b + h * matrix_h) + tile
        begin, end = tl.load(first + here), tl.load(first + here + 1)
    else:
        begin = tl.maximum(tile * SIZE - high, 0) // SIZE
        end = tl.cdiv(tl.maximum(tl.minimum(tile * SIZE + SIZE - low, Q), 0), SIZE)
    for n in range(begin, end):
        number, at = n, n
        if KIND == BLOCKS:
            number, at = tl.load(blocks + 2 * n), tl.load(blocks + 2 * n + 1)
        rows = number * SIZE + i
        inside = (rows[:, None] < Q) & (d[None, :] < D)
        queries = tl.load(at_q + rows[:, None].to(tl.int64) * q_n + d[None, :] * q_d, mask=inside, other=0.0)
        allowed = _allowed(words, at, rows, keys, low, high, Q, K, KIND)
        s = _scores(queries, values, rows, keys, K - Q, scale, cap, slope, CAPPED, SLOPED)
        base = tl.load(highest + of_head + rows, mask=rows < Q, other=0.0)
        above = tl.load(log_sum + of_head + rows, mask=rows < Q, other=0.0)
        weights = tl.exp(tl.where(allowed, s - base[:, None] - above[:, None], EMPTY))
        found += tl.sum(weights, 0)
    tl.store(received + tl.program_id(1).to(tl.int64) * K + keys, found, mask=keys < K)
