"""The largest weights of each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.call import Scores, Share
from headwise.errors import ArgumentError
from headwise.native.attend import MOST
from headwise.records.statistics.part import WeightTile
from headwise.records.statistics.statistic import Column, Statistic

# Keys are divided into chunks: the k largest weights of a row are in the k chunks with the largest maxima.
CHUNK = 32


class Largest(NamedTuple):
    """The largest weights of each row, descending, and their keys: two tensors [B, H, Q, min(top, K)]."""

    weights: Tensor
    keys: Tensor


@dataclasses.dataclass
class Top(Statistic):
    """The `top` largest weights of each row, descending, and their keys: (weights, keys), [B, H, Q, min(top, K)] each.

    A row that attends to fewer keys is filled up with other keys, whose weights are 0.
    """

    name = "top"
    unit = "share"
    sentence = "The largest weights of a query, and their keys."
    column = Column(
        name="strongest",
        title="strongest pair",
        sentence="The largest weight of all.",
        options={"top": 1},
        values=lambda top: top.weights[..., 0],
        largest=True,
    )

    native = ("top_weights", "top_keys")
    of_steps = "rows"
    of_shares = "rows"

    top: int = 8

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ArgumentError(f"statistics: top must be at least 1. Received: top={self.top}")

    def shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        return q_len, min(self.top, k_len)

    def empty(self, call: Scores) -> Largest:
        weights: Tensor = super().empty(call)
        keys = torch.arange(weights.shape[-1], device=weights.device)
        return Largest(weights, keys.expand(weights.shape).contiguous())

    def update(self, tile: WeightTile) -> None:
        weights, keys = self.answer
        span = tile.k_hi - tile.k_lo
        count = min(weights.shape[-1], span)
        weights[:, tile.rows, :count], where = largest(tile.filled, span, count)
        torch.add(where, tile.k_lo, out=keys[:, tile.rows, :count])
        if (missing := weights.shape[-1] - count) > 0:  # all other keys are before the tile or after it
            others = torch.arange(missing, device=keys.device)
            keys[:, tile.rows, count:] = others.add_(span * (others >= tile.k_lo))

    def in_whole(self, answer: Largest, share: Share) -> Largest:
        weights, cols = answer.weights, share.cols.to(answer.keys.device)
        missing = min(self.top, share.length) - weights.shape[-1]  # all keys of the process are there
        all_keys = torch.arange(share.length if missing > 0 else 0, device=cols.device)
        others = all_keys[~torch.isin(all_keys, cols)][: max(0, missing)]
        return Largest(
            pad(weights, (0, len(others))), torch.cat([cols[answer.keys], others.expand(*weights.shape[:3], -1)], -1)
        )

    def native_options(self, call: Scores) -> dict[str, Any] | None:
        top = min(self.top, call.shape[3])
        return {"top": top} if top <= MOST else None

    def of_rows(self, call: Scores, rows: Mapping[str, Tensor]) -> Largest:
        return Largest(rows["top_weights"], rows["top_keys"])

    def found_in(self, other: Statistic, answer: Largest) -> Largest | None:
        assert isinstance(other, Top)
        known = self.top <= other.top or answer.weights.shape[-1] < other.top  # all keys
        return Largest(*(x[..., : self.top] for x in answer)) if known else None

    def of_step(self, call: Scores, answer: Largest, before: int) -> tuple[Tensor, ...]:
        weights, keys = answer
        missing = self.top - weights.shape[-1]  # all keys of the step are there; others follow in the whole
        others = torch.arange(missing, device=keys.device)
        others = others + call.shape[3] * (others >= before)
        return pad(weights, (0, missing)), torch.cat([keys + before, others.expand(*keys.shape[:3], -1)], dim=-1)

    def join(self, rows: Sequence[Tensor], k_len: int) -> Largest:
        return Largest(*(x[..., :k_len] for x in rows))


def largest(weights: Tensor, keys: int, top: int) -> tuple[Tensor, Tensor]:
    """Return the largest of the first `keys` weights of each row, descending, and their keys: [n, rows, top] each."""
    n, rows, width = weights.shape
    chunks = width // CHUNK
    if chunks <= 2 * top:
        where = _places(weights[..., :keys], top, ordered=True)
        return weights.gather(2, where), where
    # If one of the `top` largest were in another chunk, each of these chunks would hold one at least as large.
    by_chunk = weights.view(n * rows, chunks, CHUNK)
    maxima = by_chunk.amax(-1)
    whole, rest = divmod(keys, CHUNK)
    taken = _places(maxima[:, : whole + (rest > 0)], top, ordered=False)
    inside = take_chunks(by_chunk, taken)
    if rest:  # the padding of the last chunk is not a key
        inside[..., rest:].masked_fill_((taken == whole)[..., None], -1.0)
    where = _places(inside.flatten(1), top, ordered=True)
    found = taken.gather(1, where // CHUNK) * CHUNK + where % CHUNK
    return inside.flatten(1).gather(1, where).view(n, rows, top), found.view(n, rows, top)


def take_chunks(by_chunk: Tensor, places: Tensor) -> Tensor:
    """Take the chunks `places` [rows, n] from each row of `by_chunk` [rows, chunks, width]: [rows, n, width]."""
    rows, chunks, _ = by_chunk.shape
    start = torch.arange(0, rows * chunks, chunks, device=places.device)[:, None]
    found = by_chunk.flatten(0, 1).index_select(0, (places + start).flatten())  # 5 times as fast as take_along_dim
    return found.unflatten(0, places.shape)


def _places(x: Tensor, top: int, *, ordered: bool) -> Tensor:
    """Return the positions of the `top` largest numbers along the last axis; the largest first if `ordered`.

    On the CPU NumPy partitions numbers with vector instructions, but not while it keeps track of their positions. So
    each number is packed with its position into one integer. (The bits of floats that are not negative, or -1, have the
    same order as the floats.)
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return x.topk(top, dim=-1, sorted=ordered).indices
    packed = x.contiguous().numpy().view(np.int32).astype(np.int64)
    packed <<= 32
    packed |= np.arange(x.shape[-1])
    if top < x.shape[-1]:
        packed.partition(x.shape[-1] - top, axis=-1)
    packed = packed[..., -top:]
    if ordered:
        packed = np.sort(packed, axis=-1)[..., ::-1]
    return torch.from_numpy(packed & 0xFFFFFFFF)
