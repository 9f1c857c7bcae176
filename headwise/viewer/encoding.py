"""One layer of attention as bytes a page can carry: its queries and keys rounded, its mask as runs of allowed keys.

The page computes A_ij = exp(s_ij - lse_i) from these bytes. `lse` is that of the rounded scores, so rows still add up
to one and rounding hardly moves a large weight. Every head is compared with its record while it is encoded: int16 where
that keeps every weight within TOLERANCE, else 24 bits, else it is refused. No picture is ever further off than that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headwise.errors import RecordError
from headwise.records import AttentionRecord

TOLERANCE = 1e-4
BLOCK_CELLS = 1 << 21  # cells of the matrix that are looked at together while a head is checked

Array = NDArray[Any]


@dataclass(frozen=True)
class EncodedGroup:
    """The query heads of one layer that read one key/value head."""

    bits: int  # 16 or 24, of each number of q and k
    data: bytes


def layer_facts(record: AttentionRecord, planes: list[int] | None) -> dict[str, Any]:
    """What the page needs to know of a layer beside its numbers, for JSON."""
    _, heads, _, dim = record.q.shape
    facts = {"heads": heads, "kvHeads": record.k.shape[1], "dim": dim, "scale": float(record.scale), "planes": planes}
    return {**facts, "softcap": None if record.softcap is None else float(record.softcap)}


def allowed_cells(record: AttentionRecord) -> Array | None:
    """The record's mask as bool [H | 1, Q, K], or None where it has none."""
    return None if record.mask is None else _numpy(record.mask.to_bool(*record.shape[2:]))[0]


def runs_of(matrix: Array) -> NDArray[np.uint32]:
    """The allowed keys of each query, as Q + 1 places into a list of runs, then (first, past the last) of each run."""
    edges = np.diff(matrix.astype(np.int8), axis=1, prepend=0, append=0)
    rows, first = np.nonzero(edges == 1)
    past = np.nonzero(edges == -1)[1]
    places = np.searchsorted(rows, np.arange(len(matrix) + 1))
    return np.concatenate([places, np.stack([first, past], axis=1).ravel()]).astype("<u4")


def encode_groups(record: AttentionRecord, allowed: Array | None, name: str) -> Iterator[EncodedGroup]:
    """Encode `record` (B = 1), one key/value head after the other.

    A group's data, little-endian, h its query heads: float32 lse [h, Q] and the row scales of q [h, Q] and of k [1, K];
    int16 q [h, Q, D] and k [1, K, D]; where bits is 24, the uint8 that follow each of these below, q's and then k's.

    Raises:
        RecordError: the page cannot represent this record; the message begins with `name` and says why.
    """
    if record.bias is not None:
        raise RecordError(
            f"{name}: the record has an additive bias, which the page cannot carry yet; use record.weights()"
        )
    q, k = _without_unseen(_numpy(record.q)[0], _numpy(record.k)[0], allowed)
    if not (np.isfinite(q).all() and np.isfinite(k).all()):
        raise RecordError(f"{name}: expected finite queries and keys where the mask allows them, received NaN or inf")
    size = len(q) // len(k)
    for group in range(len(k)):
        heads = slice(group * size, (group + 1) * size)
        for bits in (16, 24):
            q_scale, q_whole, q_read = _rounded(q[heads], bits)
            k_scale, k_whole, k_read = _rounded(k[group : group + 1], bits)
            lse, error = _lse_and_error(record, heads, q_read, k_read[0], allowed)
            if error <= TOLERANCE:
                break
        else:
            raise RecordError(
                f"{name}: the page's weights would be {error:.1e} off the record's, expected {TOLERANCE:g}"
            )
        high = [(whole >> (bits - 16)).astype("<i2") for whole in (q_whole, k_whole)]
        low = [(whole & 255).astype("u1") for whole in (q_whole, k_whole) if bits == 24]
        arrays = [*(each.astype("<f4") for each in (lse, q_scale, k_scale)), *high, *low]
        yield EncodedGroup(bits, b"".join(each.tobytes() for each in arrays))


def _numpy(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _without_unseen(q: Array, k: Array, allowed: Array | None) -> tuple[Array, Array]:
    """Zeros for queries and keys that take part in no allowed cell: what stands there, often NaN, is never seen."""
    if allowed is None:
        return q, k
    asks = np.broadcast_to(allowed.any(axis=2), q.shape[:2])
    by_head = np.broadcast_to(allowed.any(axis=1), (len(q), k.shape[1]))
    seen = np.any(by_head.reshape(len(k), -1, k.shape[1]), axis=1)
    return np.where(asks[..., None], q, np.float32(0)), np.where(seen[..., None], k, np.float32(0))


def _rounded(x: Array, bits: int) -> tuple[Array, Array, Array]:
    """x [heads, tokens, D] as row scales (float32) times whole numbers, and as the page will read that (float32)."""
    bound = 2 ** (bits - 1) - 1
    scale = (np.abs(x).max(axis=-1, keepdims=True) / bound).astype(np.float32)
    divisor = np.where(scale > 0, scale, 1).astype(np.float64)
    whole = np.clip(np.rint(x / divisor), -bound, bound).astype(np.int32)
    return scale, whole, (whole * scale.astype(np.float64)).astype(np.float32)


def _lse_and_error(
    record: AttentionRecord, heads: slice, q: Array, k: Array, allowed: Array | None
) -> tuple[Array, float]:
    """lse [h, Q] of the scores that the page will compute, and how far its weights are from the record's at most."""
    sinks = np.full(len(q), -np.inf) if record.sinks is None else _numpy(record.sinks).astype(np.float64)[heads]
    if allowed is not None and len(allowed) > 1:
        allowed = allowed[heads]
    q, k, sinks = q.astype(np.float64), k.astype(np.float64), sinks[:, None]
    lse = np.empty(q.shape[:2], np.float32)
    error, step = 0.0, max(1, BLOCK_CELLS // (len(q) * len(k)))
    for start in range(0, q.shape[1], step):
        rows = slice(start, min(start + step, q.shape[1]))
        scores = q[:, rows] @ k.T * record.scale
        if record.softcap is not None:
            scores = record.softcap * np.tanh(scores / record.softcap)
        if allowed is not None:
            scores = np.where(allowed[:, rows], scores, -np.inf)
        top = np.maximum(scores.max(axis=-1), sinks)
        top = np.where(np.isfinite(top), top, 0)  # of an empty row, whose lse then is log(0)
        with np.errstate(divide="ignore"):
            lse[:, rows] = top + np.log(np.exp(scores - top[..., None]).sum(axis=-1) + np.exp(sinks - top))
        weights = np.exp(scores - np.where(np.isfinite(lse[:, rows]), lse[:, rows], 0)[..., None])
        away = np.abs(weights - _numpy(record.weights(rows=rows, heads=heads))[0]).max()
        error = np.maximum(error, away)  # keeps a NaN, which is no weight to draw
    return lse, float(error)
