"""A kernel for sliding windows: blocks of queries attend to the few blocks of keys near them.

Time and memory grow with Q · window.
"""

from __future__ import annotations

from keras import ops

from headwise.keras.call import Call, Tensor, attend

BLOCK = 64  # the minimum number of queries in a block
CELLS = 2**22  # the number of scores computed at a time, of all examples and heads: 16 MiB, partly in a cache
PARTS = 32  # the maximum number of parts that are computed one by one, or a compiled program becomes long


def block_size(low: int, high: int) -> int:
    """Choose the number of queries in a block: about a quarter of the window."""
    return max(BLOCK, (high - low + 1) // 4)


def run(call: Call, low: int, high: int) -> Tensor:
    """Compute the output [B, H, Q, E] for a mask that allows only low <= k - q <= high (positions of key and query)."""
    call = call.usable()
    size = block_size(low, high)
    q_len, k_len = ops.shape(call.q)[2], ops.shape(call.k)[2]
    count = (q_len + size - 1) // size
    # Block i of queries begins at i · size. It may attend to the blocks of keys i + first … i + last.
    first, last = low // size, (size - 1 + high) // size
    before, after = max(0, -first), max(0, last)
    q = in_blocks(call.q, q_len, 0, count, size)
    k, v = (in_blocks(x, k_len, before, before + count + after, size) for x in (call.k, call.v))

    def compute_rows(begin: int, end: Tensor) -> Tensor:
        """Compute the output of the blocks of queries from `begin` to before `end`."""
        near = [slice(before + j + begin, before + j + end) for j in range(first, last + 1)]
        keys, values = (ops.concatenate([x[:, :, part] for part in near], axis=3) for x in (k, v))
        starts = ops.expand_dims(ops.arange(begin, end, dtype="int32") * size, -1)
        rows = starts + ops.arange(size, dtype="int32")
        cols = starts + first * size + ops.arange((last - first + 1) * size, dtype="int32")
        valid = ops.logical_and(cols >= 0, cols < k_len)
        at = ops.minimum(rows, q_len - 1), ops.clip(cols, 0, k_len - 1)
        return attend(call, q[:, :, begin:end], keys, values, *at, valid=valid)[0]

    if isinstance(count, int) and not call.dropout:  # with dropout, one seed must serve all blocks together
        cells = (call.q.shape[0] or 1) * call.q.shape[1] * size * size * (last - first + 1)
        step = max(1, CELLS // cells, -(-count // PARTS))
        parts = [compute_rows(i, min(i + step, count)) for i in range(0, count, step)]
        out = parts[0] if len(parts) == 1 else ops.concatenate(parts, axis=2)
    else:
        out = compute_rows(0, count)
    return ops.reshape(out, (-1, call.q.shape[1], count * size, call.v.shape[3]))[:, :, :q_len]


def in_blocks(x: Tensor, length: Tensor, before: int, count: Tensor, size: int) -> Tensor:
    """Cut x [B, H, S, D] into blocks [B, H, count, size, D]: `before` zero blocks, then x, padded or cut at the end."""
    missing = count * size - before * size - length
    end = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
    x = ops.pad(x, [(0, 0), (0, 0), (before * size, end), (0, 0)])[:, :, : count * size]
    return ops.reshape(x, (-1, x.shape[1], count, size, x.shape[3]))
