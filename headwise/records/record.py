"""A record keeps Q, K, the mask and the scale, not the weights: its memory is linear in the length.

Any cell, row, tile or statistic of the attention matrix is worked out again when it is asked for, some rows at a time:
A[i, j] = exp(s[i, j] - lse[i]).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from headwise.call import EVERY, AttentionCall, Scores
from headwise.errors import ArgumentError, RecordError
from headwise.masks import Mask
from headwise.records.site import Site

# What a row block of scores may take. Statistics hold a few such blocks at once, whatever the length.
BLOCK_BYTES = 2**25

Choice = int | slice | Sequence[int] | None


@dataclasses.dataclass
class Extras:
    """What only some analyses need; None = not kept."""

    v: Tensor | None = None  # [B, G, K, E]
    grad: Tensor | None = None  # dL/dO [B, H, Q, E]
    output_weight: Tensor | None = None  # W_O [H, E, M]


class AttentionRecord:
    """The attention weights of one call, [B, H, Q, K], without ever holding them.

    The tensors are the call's own, detached. If they are changed in place afterwards the record can no longer say what
    the call saw, and raises RecordError. The weights are those of the softmax, before dropout.

    Args:
        call: what the weights are made of.
        values: keep the call's values too.
        site: where in a model the call was made; None if nobody knows.
    """

    def __init__(self, call: Scores, *, values: bool = False, site: Site | None = None) -> None:
        self.dropout = call.dropout if isinstance(call, AttentionCall) else 0.0  #: how much of the weights was dropped
        self.site = site
        self.extras = Extras(v=call.v.detach() if values and isinstance(call, AttentionCall) else None)
        self._call = call.without_values()
        self._versions = _versions(self._call)

    @property
    def _scores(self) -> Scores:
        if _versions(self._call) != self._versions:
            raise RecordError(
                "q or k was changed in place after the call, so the record can no longer say what the call saw. "
                "Pass clones (q.clone(), k.clone()), or do not modify them in place"
            )
        return self._call

    @property
    def q(self) -> Tensor:
        """Queries [B, H, Q, D]."""
        return self._scores.q

    @property
    def k(self) -> Tensor:
        """Keys [B, G, K, D]."""
        return self._scores.k

    @property
    def mask(self) -> Mask | None:
        """The mask, aligned to this call's lengths; None = every query sees every key."""
        return self._scores.mask

    @property
    def bias(self) -> Tensor | None:
        """What was added to the scores; broadcasts to [B, H, Q, K]."""
        return self._scores.bias

    @property
    def scale(self) -> float:
        """The factor on q kᵀ."""
        return self._scores.scale

    @property
    def softcap(self) -> float | None:
        """The bound on the scores, by tanh."""
        return self._scores.softcap

    @property
    def sinks(self) -> Tensor | None:
        """One logit a head, [H]."""
        return self._scores.sinks

    @property
    def v(self) -> Tensor:
        """Values [B, G, K, E]. RecordError if they were not kept."""
        return self._extra("v", "values", "values=True")

    @property
    def grad(self) -> Tensor:
        """The gradient of the loss by this call's output, [B, H, Q, E]. RecordError if it was not kept."""
        return self._extra("grad", "output gradients", "gradients=True, and call backward() inside the context")

    @property
    def output_weight(self) -> Tensor:
        """W_O, what the output of each head is multiplied with next, [H, E, M]. RecordError if it is not known."""
        return self._extra("output_weight", "the output projection", "values=True")

    def _extra(self, name: str, what: str, option: str) -> Tensor:
        kept: Tensor | None = getattr(self.extras, name)
        if kept is None:
            where = f" of {self.site.name}" if self.site else ""
            raise RecordError(f"this record{where} does not have {what}. Watch the model with {option}")
        return kept

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q, K)"""
        return self._scores.shape

    def __repr__(self) -> str:
        batch, heads, q_len, k_len = self.shape
        return f"AttentionRecord(B={batch}, H={heads}, Q={q_len}, K={k_len}, mask={self.mask!r})"

    def scores(self, rows: Choice = None, cols: Choice = None, heads: Choice = None) -> Tensor:
        """The scores before the softmax, -inf where the mask forbids: [B, heads, rows, cols], float32 or better.

        Each choice is None (all), an int (a dimension of 1), a slice or a sequence of ints; negative ones count from
        the end. Raises ArgumentError, naming the valid range, for one that is out of it.
        """
        return self._scores.scores(self._choose(2, rows), self._choose(3, cols), self._choose(1, heads))

    def weights(self, rows: Choice = None, cols: Choice = None, heads: Choice = None) -> Tensor:
        """The attention weights of a tile, [B, heads, rows, cols]; choices as in `scores`. An empty row is 0."""
        row_index, head_index = self._choose(2, rows), self._choose(1, heads)
        tile = self._scores.scores(row_index, self._choose(3, cols), head_index)
        if cols is None:
            lse = self._lse_of(tile, head_index)
        elif "lse" in self.__dict__ or rows is None:
            lse = self.lse[:, head_index][:, :, row_index]
        else:  # a few rows need not wait for all the others
            lse = torch.cat([self._lse_of(s, head_index) for _, s in self._blocks(row_index, head_index)], dim=2)
        return _weights(tile, lse)

    @functools.cached_property
    def lse(self) -> Tensor:
        """log Σ exp(s), over the keys and the sink, [B, H, Q]; natural log; -inf for a row that attends to nothing."""
        return self._over_rows(lambda _, s: self._lse_of(s, EVERY))

    def entropy(self) -> Tensor:
        """-Σ A log A of each row, [B, H, Q], in nats; 0 for an empty row. A sink counts as a key. Zhai et al. 2023."""

        def entropy(rows: slice, s: Tensor) -> Tensor:
            lse = self._lse_rows(rows, s)
            # Σ A (lse - s): forbidden cells have A = 0, and 0 · inf is left out by writing 0 for s.
            spread = lse - (_weights(s, lse) * s.masked_fill(s == -torch.inf, 0.0)).sum(-1)
            if self.sinks is not None:
                sink = self.sinks.to(s.dtype)[None, :, None]
                spread = spread - torch.exp(sink - lse) * sink
            return spread.masked_fill(lse == -torch.inf, 0.0)

        return self._over_rows(entropy)

    def distance(self) -> Tensor:
        """Σ_j A[i, j] |i - j| of each row, [B, H, Q], in tokens; the last query stands at the last key."""
        keys = torch.arange(self.shape[3], device=self.q.device)
        offset = self.shape[3] - self.shape[2]

        def distance(rows: slice, s: Tensor) -> Tensor:
            away = (torch.arange(rows.start, rows.stop, device=s.device)[:, None] + offset - keys).abs()
            return (_weights(s, self._lse_rows(rows, s)) * away).sum(-1)

        return self._over_rows(distance)

    def received(self) -> Tensor:
        """Σ_i A[i, j]: the attention each key gets from all queries, [B, H, K]."""
        total = torch.zeros((*self.shape[:2], self.shape[3]), dtype=self._dtype, device=self.q.device)
        for rows, s in self._blocks():
            total += _weights(s, self._lse_rows(rows, s)).sum(2)
        return total

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        """The `k` largest weights of each row, descending, and their keys: two tensors [B, H, Q, k]."""
        if not 1 <= k <= self.shape[3]:
            raise ArgumentError(f"top_k: k must be between 1 and the {self.shape[3]} keys. Received: {k}")
        values, keys = [], []
        for rows, s in self._blocks():
            top = _weights(s, self._lse_rows(rows, s)).topk(k, dim=-1)
            values.append(top.values)
            keys.append(top.indices)
        return torch.cat(values, dim=2), torch.cat(keys, dim=2)

    def pooled(self, size: int | tuple[int, int], how: Literal["mean", "max"] = "mean") -> Tensor:
        """The matrix drawn small, [B, H, h, w]: each cell the mean or the maximum of the weights it stands for.

        `size` is (h, w), or one number for both; a side longer than the matrix is cut to it. Cell i of h stands for
        rows ⌊i Q / h⌋ to ⌈(i + 1) Q / h⌉, as in torch's adaptive pooling.
        """
        height, width = (size, size) if isinstance(size, int) else size
        if how not in ("mean", "max"):
            raise ArgumentError(f'pooled: how must be "mean" or "max". Received: {how!r}')
        if height < 1 or width < 1:
            raise ArgumentError(f"pooled: size must be at least 1 × 1. Received: {height} × {width}")
        _, _, q_len, k_len = self.shape
        height, width = min(height, q_len), min(width, k_len)
        pool = torch.nn.functional.adaptive_max_pool1d if how == "max" else torch.nn.functional.adaptive_avg_pool1d
        small = torch.zeros((*self.shape[:2], height, width), dtype=self._dtype, device=self.q.device)
        low = torch.arange(height) * q_len // height
        high = -(-(torch.arange(height) + 1) * q_len // height)
        for rows, s in self._blocks():
            weights = _weights(s, self._lse_rows(rows, s))
            narrow = pool(weights.flatten(0, 2), width).view(*weights.shape[:3], width)
            for i in range(height):
                part = narrow[:, :, max(0, int(low[i]) - rows.start) : max(0, int(high[i]) - rows.start)]
                if not part.shape[2]:
                    continue
                if how == "max":
                    small[:, :, i] = torch.maximum(small[:, :, i], part.amax(2))
                else:
                    small[:, :, i] += part.sum(2) / int(high[i] - low[i])
        return small

    # How the rows are gone through.

    @property
    def _dtype(self) -> torch.dtype:
        return torch.promote_types(self.q.dtype, torch.float32)

    def _blocks(self, rows: slice | Tensor = EVERY, heads: slice | Tensor = EVERY) -> Iterator[tuple[slice, Tensor]]:
        """The scores some rows at a time: (which rows, [B, heads, those rows, K])."""
        index = torch.arange(self.shape[2], device=self.q.device)[rows]
        batch, all_heads, _, k_len = self.shape
        step = max(1, BLOCK_BYTES // (batch * all_heads * max(1, k_len) * self._dtype.itemsize))
        for lo in range(0, len(index), step):
            part = slice(lo, min(len(index), lo + step))
            yield part, self._scores.scores(part if rows is EVERY else index[part], EVERY, heads)

    def _over_rows(self, statistic: Callable[[slice, Tensor], Tensor]) -> Tensor:
        found = [statistic(rows, s) for rows, s in self._blocks()]
        return (
            torch.cat(found, dim=2) if found else torch.zeros(self.shape[:3], dtype=self._dtype, device=self.q.device)
        )

    def _lse_of(self, s: Tensor, heads: slice | Tensor) -> Tensor:
        lse = torch.logsumexp(s, dim=-1)
        if self.sinks is not None:
            lse = torch.logaddexp(lse, self.sinks.to(lse.dtype)[heads][None, :, None])
        return lse

    def _lse_rows(self, rows: slice, s: Tensor) -> Tensor:
        return self.lse[:, :, rows] if "lse" in self.__dict__ else self._lse_of(s, EVERY)

    def _choose(self, dim: int, choice: Choice) -> slice | Tensor:
        name, size = {1: "heads", 2: "rows", 3: "cols"}[dim], self.shape[dim]
        if choice is None:
            return EVERY
        if isinstance(choice, slice):
            return choice
        chosen = [choice] if isinstance(choice, int) else [int(i) for i in choice]
        if any(not -size <= i < size for i in chosen):
            raise ArgumentError(f"{name} must lie in 0 … {size - 1}. Received: {choice}")
        return torch.tensor([i % size for i in chosen], dtype=torch.long, device=self.q.device)


def _weights(s: Tensor, lse: Tensor) -> Tensor:
    """exp(s - lse) of scores [..., r, c] and log-sum-exps [..., r]; 0 for an empty row."""
    return torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])


def _versions(scores: Scores) -> tuple[int | None, ...]:
    """torch's counts of in-place changes; inference tensors have none."""
    tensors = (scores.q, scores.k, scores.bias, scores.sinks)
    return tuple(None if x is None or x.is_inference() else x._version for x in tensors)
