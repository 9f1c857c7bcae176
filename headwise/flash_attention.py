"""The two functions of flash-attention, by its own names, defaults and layout: for code that is written for it.

    from headwise.flash_attention import flash_attn_func, flash_attn_varlen_func

They run wherever `headwise.attention` does, on the CPU too, forward and backward, and take the same kernels. Sizes are
those of flash-attention: q [B, Q, H, D], k [B, K, G, D], v [B, K, G, E], and H is a multiple of G.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from headwise import masks
from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.functional import attention
from headwise.masks import Mask

__all__ = ["flash_attn_func", "flash_attn_varlen_func"]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Compute attention of queries q [B, Q, H, D], keys k [B, K, G, D] and values v [B, K, G, E]: [B, Q, H, E].

    Args:
        dropout_p: probability with which a weight is dropped.
        softmax_scale: the factor of the scores; None = 1/sqrt(D).
        causal: whether a query sees no key behind its own position; the last query is at the last key.
        window_size: how many keys a query sees before and after its position; -1 = no limit.
        softcap: scores become softcap · tanh(scores / softcap); 0 = as they are.
        alibi_slopes: [H]: the score of query i and key j is lowered by slope · |i + K - Q - j|.
        deterministic: always so here.
        return_attn_probs: whether to return (output, log-sum-exp of each row [B, H, Q], None) as flash-attention does
            in tests; without dropout only.

    Raises ShapeError, DtypeError, ArgumentError: an argument that does not fit; the message names it.
    """
    mask = _band(causal, window_size)
    options: Any = {"mask": mask, "scale": softmax_scale, "softcap": softcap or None, "slopes": alibi_slopes}
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    if not return_attn_probs:
        return attention(*heads_first, **options, dropout=dropout_p).transpose(1, 2)
    if dropout_p:
        raise ArgumentError(f"return_attn_probs: expected no dropout with it. Received: dropout_p={dropout_p}")
    out, record = attention(*heads_first, **options, record=True)
    return out.transpose(1, 2), record.lse, None


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Compute attention of sequences that stand one behind the other: q [total, H, D] to the output [total, H, E].

    Args:
        k, v: [total of keys, G, D] and [total of keys, G, E]; with a block table, pages [pages, size, G, D or E].
        cu_seqlens_q, cu_seqlens_k: [B + 1], where each sequence begins, and where the last one ends.
        max_seqlen_q, max_seqlen_k: the longest sequences; not needed here.
        return_attn_probs: not supported.
        block_table: [B, most pages], the numbers of the pages that hold the keys of each sequence, in order.
        others: as of `flash_attn_func`.

    Raises ShapeError, DtypeError, ArgumentError: an argument that does not fit; the message names it.
    """
    if return_attn_probs:
        raise ArgumentError("return_attn_probs: expected False for packed sequences. Received: True")
    ends_q = _read_starts("cu_seqlens_q", cu_seqlens_q, len(q))
    ends_k = _read_starts("cu_seqlens_k", cu_seqlens_k, len(k) if block_table is None else None)
    if len(ends_q) != len(ends_k):
        raise ShapeError(
            f"cu_seqlens_k: expected [{len(ends_q)}], as cu_seqlens_q. Received: cu_seqlens_k=[{len(ends_k)}]"
        )
    options: Any = {"scale": softmax_scale, "softcap": softcap or None, "slopes": alibi_slopes, "dropout": dropout_p}
    band = _band(causal, window_size)
    if block_table is None and ends_q == ends_k and alibi_slopes is None:  # in one call: no sequence sees another
        sequences = masks.documents(number_sequences(cu_seqlens_q.to(q.device), len(q)))
        mask = sequences if band is None else sequences & band
        row = [x.transpose(0, 1)[None] for x in (q, k, v)]
        return attention(*row, mask=mask, **options)[0].transpose(0, 1)
    parts = []
    for i, ((first, begin), (last, end)) in enumerate(itertools.pairwise(zip(ends_q, ends_k, strict=True))):
        if block_table is None:
            keys, values = k[begin:end], v[begin:end]
        else:
            keys, values = (x[block_table[i].long()].flatten(0, 1)[: end - begin] for x in (k, v))
        row = [x.transpose(0, 1)[None] for x in (q[first:last], keys, values)]
        parts.append(attention(*row, mask=band, **options)[0].transpose(0, 1))
    return torch.cat(parts)


def _read_starts(name: str, starts: Tensor, total: int | None) -> list[int]:
    """Read where sequences begin. `total`: the number of rows, where the last one must end."""
    if not isinstance(starts, Tensor) or starts.dtype not in (torch.int32, torch.int64) or starts.ndim != 1:
        received = f"{starts.dtype} {list(starts.shape)}" if isinstance(starts, Tensor) else type(starts).__name__
        raise DtypeError(f"{name}: expected a tensor [B + 1] of int32 or int64. Received: {name} of {received}")
    found: list[int] = starts.tolist()
    rises = all(begin <= end for begin, end in itertools.pairwise(found))
    if found[:1] != [0] or not rises or (total is not None and found[-1] != total):
        end = "" if total is None else f", and end at {total}, the number of rows"
        raise ArgumentError(f"{name}: expected starts that begin at 0 and do not fall{end}. Received: {found}")
    return found


def number_sequences(starts: Tensor, length: int) -> Tensor:
    """Number the sequences that are packed in one row, by where they begin: 0, 0, 0, 1, 1, … [length]."""
    places = torch.arange(length, device=starts.device)
    return torch.bucketize(places, starts[1:].to(places.dtype), right=True)


def _band(causal: bool, window_size: tuple[int, int]) -> Mask | None:
    """Return the mask of a causal flag and a window (before, after), -1 = no limit; None if nothing is masked."""
    left, right = (None if size < 0 else size for size in window_size)
    right = 0 if causal else right
    return None if left is None and right is None else masks.window(left, right)


def __dir__() -> list[str]:
    return __all__
