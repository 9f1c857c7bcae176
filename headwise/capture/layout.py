"""Brings tensors with any order of batch and heads to the shapes q [B, H, Q, D], k [B, G, K, D], v [B, G, K, E]."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Which of the leading dimensions `lead` of a model's tensors are the batch, and which are the heads."""

    lead: tuple[int, ...]
    batch: int
    heads: int
    at: int | None = None  # the index in `lead` of the heads; None = all dimensions but the first

    def fold(self, x: Tensor) -> Tensor:
        """Bring a tensor [*lead, r, c], or one that broadcasts to this shape, to [B, H, r, c]."""
        shape = (self.batch, self.heads, *x.shape[-2:])
        if self.at is None and tuple(x.shape) == shape:
            return x
        x = x.expand(*self.lead, *shape[2:])
        return (x if self.at is None else x.movedim(self.at, len(self.lead) - 1)).reshape(shape)

    def fold_mask(self, x: Tensor) -> Tensor:
        """Bring a mask or bias that broadcasts to [*lead, Q, K] to [B|1, H|1, r, c], expanded only where necessary.

        r is Q or 1, c is K or 1.
        """
        x = x[(None,) * (len(self.lead) + 2 - x.ndim)]
        lead, rows = x.shape[:-2], x.shape[-2:]
        if self.at is not None:
            if lead.numel() == 1:
                return x.reshape(1, 1, *rows)
            return self.fold(x)
        if len(lead) == 2:
            return x
        if all(size == 1 for size in lead[1:]) and (len(lead) > 2 or lead.numel() == 1):
            return x.reshape(lead.numel(), 1, *rows)
        return self.fold(x)


def read_layout(lead: tuple[int, ...], heads: int | None) -> Layout:
    """Decide which dimensions of scores [*lead, Q, K] are the heads. `heads`: their number, None = not stated."""
    if len(lead) < 2:
        # Batch and heads in one dimension, as torch.bmm needs them; or a batch of a single head.
        n = math.prod(lead)
        folded = heads if heads and n % heads == 0 else 1
        return Layout(lead, n // folded, folded)
    folded = math.prod(lead[1:])
    if heads and heads > 1 and folded != heads and heads in lead:  # windows or blocks beside heads count as examples
        at = len(lead) - 1 - lead[::-1].index(heads)
        return Layout(lead, math.prod(lead) // heads, heads, at)
    return Layout(lead, lead[0], folded)


def smallest(x: Tensor, dims: Iterable[int]) -> Tensor:
    """Reduce `x` to size 1 in each of the dimensions `dims` along which its numbers do not change."""
    for dim in dims:
        first = x[(slice(None),) * dim + (slice(0, 1),)]
        x = first if torch.equal(x, first.expand_as(x)) else x
    return x


def copy_from_buffer(x: Tensor) -> Tensor:
    """Copy keys or values [B, G, K, ·] that are the filled part of a growing buffer; return others as they are."""
    length = x.shape[2] * x.stride(2)
    outer = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1 and stride > x.stride(2)]
    end = min(outer, default=x.untyped_storage().nbytes() // x.element_size() - x.storage_offset())
    return x.clone() if x.shape[2] and 0 < length < end else x


def share_heads(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Remove the copies of key heads that a model made for grouped queries: [B, H, K, ·] becomes [B, G, K, ·].

    The numbers are compared, because there are many ways to repeat heads. If nothing is repeated, comparing a few keys
    shows it.
    """
    heads = k.shape[1]
    if heads == 1 or not k.shape[2] or not k.numel():
        return k, v
    few = k[:, :, : min(4, k.shape[2])]
    same = (few[:, 1:] == few[:, :1]).flatten(2).all(-1).all(0).tolist()
    n = 1 + next((i for i, equal in enumerate(same) if not equal), heads - 1)
    if n == 1 or heads % n:
        return k, v

    def shared(x: Tensor) -> Tensor | None:
        groups = x.unflatten(1, (heads // n, n))
        return groups[:, :, 0].clone() if torch.equal(groups, groups[:, :, :1].expand_as(groups)) else None

    keys, values = shared(k), shared(v)
    return (k, v) if keys is None or values is None else (keys, values)
