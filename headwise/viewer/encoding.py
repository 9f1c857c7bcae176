"""Encodes q and k of recorded attention as bytes in a page, with as few bits as the weights of each head allow.

The page computes the weights A_ij = exp(s_ij - lse_i) from these bytes. `lse` is the log-sum-exp of the rounded scores,
so rows still sum to 1 and rounding hardly changes a large weight. Every head is compared with its record during
encoding: it gets the fewest bits per number that keep every weight within a tolerance, or is refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.errors import RecordError
from headwise.records import AttentionRecord
from headwise.records.terms import check_shown
from headwise.softmax import attention_weights
from headwise.viewer.planes import carried_bias, common_to_rows
from headwise.viewer.threads import on_threads

TOLERANCE = 1e-4
LOOSEST = 2e-3  # for scores so large that float32 weights are no more accurate
FEWEST, MOST = 12, 24  # bits per number of q and k
TRIED_ROWS, CHECKED_ROWS = 128, 1024  # rows compared to guess the bits, and to check them; evenly spread
BLOCK_CELLS, BLOCK_ROWS = 2**19, 128  # cells compared at once, which stay in the cache, and their rows
MARGIN = 0.7  # the number of bits is guessed for an error of this share of the tolerance
LARGE = 256.0  # larger scores have too few fractional digits in float32
BLIND = 2.0**28  # a bias of this size, common to a row, leaves no digits of its scores

Array = NDArray[Any]


@dataclass(frozen=True)
class Group:
    """The query heads of one layer that share one key/value head, for one example.

    `data`, little-endian, with h query heads: lse [h, Q], float32 or, if `wide`, float64; the scales of the rows of
    q [h, Q] and of k [K], each the upper 16 bits of a float32; then integers of `bits` bits each, packed without gaps,
    the first in the lowest bits of the first byte: q [h, Q, D] and k [K, D].
    """

    bits: int  # 12 to 24
    wide: bool
    tolerance: float  # largest allowed error of a weight
    data: bytes


def encode(records: Mapping[AttentionRecord, str]) -> Iterator[list[list[Group]]]:
    """Yield for each record a list with one entry per example: its list of groups, one group per key/value head.

    Args:
        records: record -> its name in messages.

    Raises:
        RecordError: the page cannot represent a record; the message names it and says why.
    """
    return on_threads(_encode, records.items())


def _encode(named: tuple[AttentionRecord, str]) -> list[list[Group]]:
    record, name = named
    try:
        check_shown(record.call)
    except RecordError as error:
        raise RecordError(f"{name}: {error}") from None
    rounded = _round_as_far_as_possible(record, name)
    batch, key_heads = rounded.bits.shape
    size = record.shape[1] // key_heads
    lse = rounded.record.lse.cpu().numpy().astype("<f8" if rounded.wide else "<f4")
    (q_scale, q_whole), (k_scale, k_whole) = ([x.cpu().numpy() for x in pair] for pair in (rounded.q, rounded.k))

    def group(b: int, g: int) -> Group:
        heads, bits = slice(g * size, (g + 1) * size), int(rounded.bits[b, g])
        whole = packed(np.concatenate([q_whole[b, heads].ravel(), k_whole[b, g].ravel()]), bits)
        arrays = (lse[b, heads], _upper(q_scale[b, heads]), _upper(k_scale[b, g]), whole)
        return Group(bits, rounded.wide, rounded.tolerance, b"".join(array.tobytes() for array in arrays))

    return [[group(b, g) for g in range(key_heads)] for b in range(batch)]


def packed(whole: Array, bits: int) -> NDArray[np.uint8]:
    """Pack integers of `bits` bits each (at most 25) into bytes, without gaps, padded with zeros."""
    eights = np.zeros((-(-len(whole) // 8), 8), np.uint32)  # eight numbers take `bits` bytes
    eights.ravel()[: len(whole)] = whole.astype(np.int32).view(np.uint32) & np.uint32((1 << bits) - 1)
    out = np.zeros((len(eights), bits), np.uint8)
    for i in range(8):
        byte, shift = divmod(i * bits, 8)
        number = eights[:, i] << np.uint32(shift)
        for k in range(-(-(shift + bits) // 8)):
            out[:, byte + k] |= (number >> np.uint32(8 * k)).astype(np.uint8)
    return out.ravel()[: -(-len(whole) * bits // 8)]


class _Rounded:
    """A record whose q and k are rounded to `bits` [B, G] bits; `self.record` gives the weights that the page shows."""

    def __init__(self, record: AttentionRecord, q: Tensor, k: Tensor, bits: Tensor, highest: float) -> None:
        self.bits, self.wide = bits, highest > LARGE
        self.tolerance = min(max(TOLERANCE, highest * 2.0**-24), LOOSEST)
        *self.q, q = _rounded(q, bits.repeat_interleave(q.shape[1] // k.shape[1], dim=1))  # scales and integers
        *self.k, k = _rounded(k, bits)
        if self.wide:
            q, k = q.double(), k.double()
        # The data in the page: slopes are in its bias.
        carried = dataclasses.replace(record.call, q=q, k=k, bias=carried_bias(record), slopes=None)
        self.record = AttentionRecord(carried)

    def error(self, of: AttentionRecord, most: int, groups: Sequence[int]) -> Tensor:
        """Return the largest error of a weight in at most `most` rows, for the key heads `groups`: [B, groups].

        If an error exceeds the tolerance, another error above the tolerance may be returned instead of the largest.
        """
        batch, heads, q_len, k_len = of.shape
        size = heads // self.bits.shape[1]
        rows = torch.arange(q_len)
        if q_len > most:
            rows = torch.tensor([round(i * (q_len - 1) / (most - 1)) for i in range(most)])
        # Many rows of few heads at a time: a product with few rows reads all keys and computes little.
        together = max(1, BLOCK_CELLS // (batch * size * min(len(rows), BLOCK_ROWS) * k_len))
        step = max(1, BLOCK_CELLS // (batch * size * min(together, len(groups)) * k_len))
        errors = []
        for first in range(0, len(groups), together):
            chosen = torch.tensor([g * size + i for g in groups[first : first + together] for i in range(size)])
            error = torch.zeros(batch, len(chosen), device=of.q.device)
            for some in rows.split(step):
                cols = _in_sight(of, some)
                away = _weights(self.record, some, cols, chosen).sub_(_weights(of, some, cols, chosen))
                error = torch.maximum(error, away.abs_().flatten(2).amax(2).float())
                if bool((error > self.tolerance).all()):
                    break  # these heads need more bits, whatever the other rows give
            errors.append(error)
        return torch.cat(errors, 1).unflatten(1, (len(groups), size)).amax(2)


def _in_sight(record: AttentionRecord, rows: Tensor) -> slice:
    """Return the slice of keys that a banded mask allows for these rows (at least one key); others have weight 0."""
    band, k_len = None if record.mask is None else record.mask.band(), record.shape[3]
    if band is None:
        return slice(0, k_len)
    low, high = (int(min(max(end, -record.shape[2]), k_len)) for end in band)
    first = min(max(int(rows[0]) + low, 0), k_len - 1)
    return slice(first, min(max(int(rows[-1]) + high + 1, first + 1), k_len))


def _weights(record: AttentionRecord, rows: Tensor, cols: slice, heads: Tensor) -> Tensor:
    """Compute the same as `record.weights`, without its slow checks, for rows that see only the keys `cols`."""
    rows, heads = rows.to(record.q.device), heads.to(record.q.device)
    sinks = None if record.sinks is None else record.sinks[heads]
    return attention_weights(record.call.scores(rows, cols, heads), sinks, overwrite=True)


def _round_as_far_as_possible(record: AttentionRecord, name: str) -> _Rounded:
    q, k = _usable(record)
    if not (bool(q.isfinite().all()) and bool(k.isfinite().all())):
        raise RecordError(f"{name}: expected finite queries and keys where the mask allows them. Received: NaN or inf")

    highest = float(q.norm(dim=-1).amax() * k.norm(dim=-1).amax()) * abs(record.scale)
    highest = min(highest, record.softcap or highest)  # the largest possible score
    if highest > LARGE:  # float32 weights would be inaccurate themselves
        record = AttentionRecord(dataclasses.replace(record.call, q=record.q.double(), k=record.k.double()))

    def needed(tried: _Rounded, error: Tensor) -> Tensor:
        """Return the number of bits that keeps the error within the tolerance: each bit halves the error."""
        more = (error / (MARGIN * tried.tolerance)).log2().nan_to_num(MOST, MOST, -MOST).ceil()
        return (tried.bits + more).clamp(FEWEST, MOST).int()

    bits = torch.full((q.shape[0], k.shape[1]), 16, dtype=torch.int32, device=q.device)
    groups = list(range(k.shape[1]))
    tried = _Rounded(record, q, k, bits, highest)
    bits = needed(tried, tried.error(record, TRIED_ROWS, groups))
    error = torch.zeros(bits.shape, device=q.device)
    while True:
        tried = _Rounded(record, q, k, bits, highest)
        error[:, groups] = tried.error(record, CHECKED_ROWS, groups)
        away = ~(error <= tried.tolerance)  # true for NaN too
        if not bool(away.any()):
            return tried
        if bool((bits[away] == MOST).any()):
            raise RecordError(
                f"{name}: the page's weights would differ from the record's by {float(error[away].max()):.1e}, "
                f"expected at most {tried.tolerance:.0e}"
            )
        bits = torch.where(away, torch.maximum(needed(tried, error), bits + 1), bits)
        groups = away.any(0).nonzero()[:, 0].tolist()  # the other groups keep their bits, and so their error


def _usable(record: AttentionRecord) -> tuple[Tensor, Tensor]:
    """Return q and k in float32, with 0 in rows on which no weight depends (such as padding), which may hold NaN."""
    q, k = record.q.float(), record.k.float()
    if record.mask is not None:
        used = record.mask.used_keys(*record.shape[2:])
        if used is not None:
            used = used.unflatten(1, (k.shape[1], -1)).any(2) if used.shape[1] > 1 else used
            k = k.masked_fill(~used.to(k.device)[..., None], 0.0)
        if not bool(q.sum().isfinite()):
            q = q.masked_fill((record.lse == -torch.inf)[..., None], 0.0)
    if record.bias is not None and common_to_rows(record):  # a bias of finfo.min makes all scores of its row equal
        q = q.masked_fill((record.bias.abs() > BLIND) & record.bias.isfinite(), 0.0)
    return q, k


def _rounded(x: Tensor, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round x [B, n, tokens, D] to `bits` [B, n] bits: return (scale of each row, integers, scale · integers).

    A scale is a float32 whose lower 16 bits are 0, rounded up. The page computes with scale · integers.
    """
    scale = x.abs().amax(-1, keepdim=True) / (2.0 ** (bits - 1) - 1)[..., None, None]
    scale = ((scale.view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)
    whole = (x / scale.masked_fill(scale == 0, 1.0)).round_()
    return scale, whole, whole * scale


def _upper(scale: Array) -> Array:
    found: Array = (np.ascontiguousarray(scale[..., 0]).view(np.uint32) >> 16).astype("<u2")
    return found
