"""One attention computation with all its arguments, and the scores of any tile of it.

The meaning of every option is written here, once: the reference kernel asks for the whole matrix, a record for the rows
it needs, the capture of foreign models builds the same object from what it intercepted.

    s = scale · q kᵀ;   s = softcap · tanh(s / softcap);   s += bias;   s = -inf where the mask forbids
    A = exp(s - lse),   lse = log(Σ exp(s) + exp(sink))

Query head h reads key/value head h // (H / G). Scores are float32, or float64 for float64 inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from headwise import shapes
from headwise.masks import Mask
from headwise.masks.cellwise import Dense, as_mask
from headwise.masks.tensors import recall

Index = slice | Tensor
EVERY = slice(None)


@dataclasses.dataclass(frozen=True, eq=False)
class Scores:
    """Everything that decides the attention weights: all of a call but its values and dropout."""

    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, G, K, D]
    mask: Mask | None  # aligned to (Q, K); None = every query sees every key
    bias: Tensor | None  # broadcasts to [B, H, Q, K]
    scale: float
    softcap: float | None
    sinks: Tensor | None  # [H]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q, K)"""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def heads_per_key_head(self) -> int:
        """H / G"""
        return self.q.shape[1] // self.k.shape[1]

    def scores(self, rows: Index = EVERY, cols: Index = EVERY, heads: Index = EVERY) -> Tensor:
        """The scores of a tile, -inf where the mask forbids: [B, heads, rows, cols], as slices or 1-D index tensors."""
        key_heads = (
            None
            if isinstance(heads, slice) and heads == EVERY
            else self._positions(1, heads) // self.heads_per_key_head
        )
        # (torch.compile cannot follow a cached property.)
        keys = self.usable(self.k) if torch.compiler.is_compiling() else self._usable_keys
        q, k = self.q[:, heads][:, :, rows], keys[:, :, cols]
        dtype = torch.promote_types(q.dtype, torch.float32)
        with as_written(q.device):
            s = _products(q.to(dtype), k.to(dtype), key_heads).mul_(self.scale)
        if self.softcap is not None:
            s = self.softcap * torch.tanh(s / self.softcap)
        if self.bias is not None:
            bias = self.bias_tile(rows, cols, heads).to(dtype)
            s = s + bias
            if self.bias.shape[-1] == 1 and self.sinks is None:
                # The softmax does not see what a row has in common, only that adding it may round the scores: finfo.min
                # makes them all equal. Left in, it would round the log-sum-exp too.
                s = s - bias.masked_fill(bias == -math.inf, 0.0)
        if self.mask is not None:
            allowed = self.mask.cells(self._positions(2, rows), self._positions(3, cols))
            allowed = allowed[:, heads] if allowed.shape[1] > 1 else allowed
            s = s.masked_fill(~allowed, -math.inf)
        return s

    def without_values(self) -> Scores:
        """What a record keeps: the tensors detached, the values left out."""

        def detach(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.detach()

        q, k = self.q.detach(), self.k.detach()
        return Scores(q, k, self.mask, detach(self.bias), self.scale, self.softcap, detach(self.sinks))

    def bias_tile(self, rows: Index = EVERY, cols: Index = EVERY, heads: Index = EVERY) -> Tensor:
        """The part of the bias that falls on a tile: rank 4, size 1 where it is the same for all."""
        assert self.bias is not None
        bias = self.bias[(None,) * (4 - self.bias.ndim)]
        bias = bias[:, heads] if bias.shape[1] > 1 else bias
        bias = bias[:, :, rows] if bias.shape[2] > 1 else bias
        return bias[..., cols] if bias.shape[3] > 1 else bias

    def usable(self, x: Tensor) -> Tensor:
        """Keys or values [B, G, K, ·] with 0 for those that nobody may attend to: what they hold cannot spread.

        (NaN times a weight of 0 is NaN.) Without such keys, or where nothing could spread, this is `x` itself.
        """
        used = self.used_keys
        if used is None:
            return x
        if torch.compiler.is_compiling():
            return x.masked_fill(~used[..., None], 0.0)
        # Reading is cheaper than copying: a finite sum has only finite terms. On other devices it would have to wait.
        if x.device.type == "cpu" and bool(x.detach().sum().isfinite()):
            return x
        return x.masked_fill(~used[..., None], 0.0)

    @functools.cached_property
    def _usable_keys(self) -> Tensor:
        return self.usable(self.k)

    def _positions(self, dim: int, index: Index) -> Tensor:
        return torch.arange(self.shape[dim], device=self.q.device)[index]

    @property
    def used_keys(self) -> Tensor | None:
        """The keys that some query may attend to, bool [B|1, G|1, K]; None = all of them."""
        if self.mask is None:
            return None
        q_len, k_len = self.shape[2:]
        low, high = self.mask.band() or (0, 0)
        if low == -math.inf and high >= k_len - q_len:
            return None  # the last query sees every key
        used = self._traced_used_keys() if torch.compiler.is_compiling() else self.mask.used_keys(q_len, k_len)
        if used is None:
            return None
        if used.shape[1] > 1:
            used = used.unflatten(1, (self.k.shape[1], self.heads_per_key_head)).any(2)
        return used.to(self.k.device)

    def _traced_used_keys(self) -> Tensor:
        """The used keys [B|1, H|1, K] by operations alone, which torch.compile can follow."""
        assert self.mask is not None
        rows = torch.arange(1 if self.mask.key_only else self.shape[2], device=self.q.device)
        return self.mask.cells(rows, self._positions(3, EVERY)).any(-2)


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionCall(Scores):
    """One attention computation: out = dropout(A) v, [B, H, Q, E]."""

    v: Tensor  # [B, G, K, E]
    dropout: float

    @property
    def trains(self) -> bool:
        """Whether a gradient will be asked of this call."""
        inputs = (self.q, self.k, self.v, self.bias, self.sinks)
        return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """What a kernel's choice may depend on: calls of one kind, with one mask, are planned alike."""
        bias = None if self.bias is None else (self.bias.shape, self.bias.requires_grad)
        options = (self.softcap is None, self.sinks is None, self.dropout > 0.0, self.trains)
        return (self.q.shape, self.k.shape, self.v.shape, self.q.dtype, self.q.device, bias, *options)


def make_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
) -> AttentionCall:
    """Check the arguments of `attention` and put them into one object. Raises ShapeError, DtypeError, MaskError."""
    q, k, v = _autocast(q, k, v)
    shapes.check_qkv(q, k, v)
    shapes.check_numbers(scale, softcap, dropout)
    if bias is not None:
        shapes.check_bias(bias, q, k.shape[2])
    if sinks is not None:
        shapes.check_sinks(sinks, q)
    if mask is not None:
        mask = fit_mask(mask, q, q.shape[1], q.shape[2], k.shape[2])
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    return AttentionCall(q, k, mask, bias, scale, softcap, sinks, v, dropout)


def attention_weights(scores: Tensor, sinks: Tensor | None, *, overwrite: bool = False) -> Tensor:
    """exp(s - lse) of whole rows of scores [B, H, Q, K]; a sink takes its share of the sum and gives nothing.

    With `overwrite` the weights may take the place of the scores, which no gradient then goes through.
    """
    # An empty row is computed as if it were full of zeros, then set to 0: so are its gradients, where -inf gives NaN.
    # (On the CPU a look at the first key tells that there is none; elsewhere a look would wait.)
    looks = scores.device.type == "cpu" and not torch.compiler.is_compiling()
    if looks and not bool((scores[..., :1] == -math.inf).any()):
        empty = None
    else:
        empty = (scores == -math.inf).all(-1, keepdim=True)
        scores = scores.masked_fill(empty, 0.0)
    if sinks is not None:
        sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, sink], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1, out=scores if overwrite else None)
    return weights if empty is None else weights.masked_fill(empty, 0.0)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Inside torch.autocast the tensors in its dtype, as scaled_dot_product_attention takes them; else as they are."""
    first = tensors[0]
    if not isinstance(first, Tensor) or not _autocasts(first.device):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    lowered = (torch.float16, torch.bfloat16, torch.float32)
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.dtype in lowered else x for x in tensors)


def as_written(device: torch.device) -> AbstractContextManager[None]:
    """Inside, torch computes in the dtypes that the code says: autocast would lower the products of the scores."""
    if _autocasts(device):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _autocasts(device: torch.device) -> bool:
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def fit_mask(mask: object, like: Tensor, heads: int | None, q_len: int, k_len: int, *, name: str = "mask") -> Mask:
    """A mask or bool tensor, aligned to Q and K. A tensor is recognised as what it is: see `masks.tensors`.

    DtypeError, ShapeError or MaskError unless it fits them, H (None = any), and the batch size and device of `like`.
    """
    fitting = as_mask(name, mask)
    shapes.check_device(name, fitting.device, like)
    shapes.check_fits(name, "B", fitting.batch, like.shape[0])
    shapes.check_fits(name, "H", fitting.heads, fitting.heads or 0 if heads is None else heads)
    if isinstance(mask, Tensor) and isinstance(fitting, Dense):
        fitting = recall(fitting, q_len, k_len)
    return fitting.aligned(q_len, k_len)


def _products(q: Tensor, k: Tensor, key_heads: Tensor | None) -> Tensor:
    """q kᵀ, [B, h, r, c]. `key_heads` [h] says which key head each query head reads; None = all heads, in order."""
    if key_heads is not None:
        return q @ k[:, key_heads].mT
    # The query heads of one key head are put below one another, so that the keys need not be repeated.
    groups = q.unflatten(1, (k.shape[1], -1))
    return (groups.flatten(2, 3) @ k.mT).unflatten(2, groups.shape[2:4]).flatten(1, 2)
