"""One attention computation with all its arguments, and the scores of any tile (some rows and columns) of its matrix.

The meaning of every option is written here, once: the reference kernel asks for the whole matrix, a record for the rows
it needs, and the capture of other people's models builds the same object from the tensors that it intercepted.

    s = scale · q kᵀ;   s = softcap · tanh(s / softcap);   s += bias - slope · |i + K - Q - j|
    s = -inf where the mask forbids
    A = exp(s - lse),   lse = log(Σ exp(s) + exp(sink))

Query head h reads key/value head h // (H / G). Scores are float32, or float64 for float64 inputs. A bias of -inf
forbids a pair, as the mask does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise import shapes
from headwise.masks import Mask
from headwise.masks.cellwise import Dense, as_mask
from headwise.masks.picked import Picked
from headwise.masks.tensors import recall
from headwise.options import EVERY, Index, OptionArguments, Options, check_options
from headwise.quantized import Int8
from headwise.softmax import EMPTY, attention_weights
from headwise.tracing import is_traced

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


@dataclasses.dataclass(frozen=True, eq=False)
class Share:
    """The part of a longer sequence that one process computes: the positions of its queries and keys.

    These are positions in the whole sequence, in ascending order.
    """

    rows: Tensor = dataclasses.field(metadata={"since": 3})  # int64 [Q]
    cols: Tensor = dataclasses.field(metadata={"since": 3})  # int64 [K]: all keys that these rows may see, maybe others
    length: int = dataclasses.field(metadata={"since": 3})  # N
    mask: Mask | None = dataclasses.field(default=None, metadata={"stored": False})  # of the whole, aligned to [N, N]

    def has(self, mask: Mask | None) -> bool:
        """Whether `mask` is the whole sequence's mask, cut to these rows and columns.

        An edit gives a call another mask: then the result is False.
        """
        return mask is None if self.mask is None else isinstance(mask, Picked) and mask.part is self.mask


@dataclasses.dataclass(frozen=True, eq=False)
class Scores(Options):
    """The arguments of a call that decide its attention weights: all of them except the values."""

    q: Tensor  # [B, H, Q, D]
    k: Tensor  # [B, G, K, D]; int8 where the call has a `k_scale`
    mask: Mask | None = None  # aligned to (Q, K); None = every query sees every key

    # Only if this object is a part of a call with slopes: the positions of its queries and keys in the whole call.
    places: tuple[Tensor, Tensor] | None = dataclasses.field(default=None, kw_only=True, metadata={"stored": False})

    # The part of a longer sequence that this call computes; None = the call computes a whole sequence.
    share: Share | None = dataclasses.field(default=None, kw_only=True, metadata={"stored": False})

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes (B, H, Q, K) of the matrix."""
        batch, heads, q_len, _ = self.q.shape
        return batch, heads, q_len, self.k.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores: float32 or better."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def whole(self) -> tuple[Mask | None, int, int]:
        """(mask, Q, K): of the whole sequence if this call is the share of one process, else of this call."""
        if self.share is not None:
            return self.share.mask, self.share.length, self.share.length
        _, _, q_len, k_len = self.shape
        return self.mask, q_len, k_len

    def of(self, share: Share | None) -> Self:
        """Copy this call, and mark it as `share`: the part of a longer call that one process computes.

        If an edit has changed the mask of this call, the copy has no share.
        """
        return dataclasses.replace(self, share=share if share is not None and share.has(self.mask) else None)

    @property
    def heads_per_key_head(self) -> int:
        """H / G, the number of query heads that read one key head."""
        return self.q.shape[1] // self.k.shape[1]

    def scores(self, rows: Index = EVERY, cols: Index = EVERY, heads: Index = EVERY) -> Tensor:
        """Compute the scores [B, heads, rows, cols] of some rows, columns and heads (slices or 1-D index tensors).

        The scores are -inf where the mask forbids.
        """
        s = self.part(b=EVERY, heads=heads, rows=rows, cols=cols).unmasked()
        if self.mask is None:
            return s
        allowed = self.mask.cells(self._positions(2, rows), self._positions(3, cols))
        allowed = allowed[:, heads] if allowed.shape[1] > 1 else allowed
        return s.masked_fill(~allowed, EMPTY)

    def weights(self, rows: Index | None = None, heads: Index | None = None, *, overwrite: bool = False) -> Tensor:
        """Compute attention weights [B, heads, rows, K] of some rows, for all keys; 0 in rows without an allowed key.

        With `overwrite` the weights are written over the scores, and no gradient goes through them.
        """
        # (No default is a slice: torch.compile of torch 2.8 could not trace a call that leaves such an argument out.)
        rows, heads = (EVERY if index is None else index for index in (rows, heads))
        sinks = None if self.sinks is None else self.sinks[heads]
        return attention_weights(self.scores(rows, EVERY, heads), sinks, overwrite=overwrite)

    def allowed(self, rows: Index = EVERY) -> Tensor:
        """Find which queries may attend to which keys by mask and bias (-inf): bool [B|1, H|1, rows, K], True = may."""
        q, k = self._positions(2, rows), self._positions(3, EVERY)
        if self.mask is None:
            allowed = torch.ones((), dtype=torch.bool, device=q.device).expand(1, 1, len(q), len(k))
        else:
            allowed = self.mask.cells(q, k)
        if self.bias is not None:
            allowed = allowed & (self.take_options({"Q": rows})["bias"].to(self.dtype) != EMPTY)
        return allowed

    def has_key(self, offset: int) -> Tensor:
        """Find the queries that may attend to the key `offset` tokens before them: bool [B|1, H|1, Q], True = may."""
        mask, q_len, k_len = self.whole
        q = self._positions(2, EVERY) if self.share is None else self.share.rows.to(self.q.device)
        k = q + (k_len - q_len - offset)
        found, k = ((k >= 0) & (k < k_len))[None, None], k.clamp(0, max(0, k_len - 1))
        if mask is not None and found.any():
            b, h = (torch.arange(size or 1, device=q.device) for size in (mask.batch, mask.heads))
            found = found & mask.allows(b[:, None, None], h[:, None], q, k)
        if self.bias is not None and self.share is None and found.any():
            bias = self.bias[(None,) * (4 - self.bias.ndim)]
            found = found & (bias.expand(*bias.shape[:2], q_len, k_len)[..., q, k].to(self.dtype) != EMPTY)
        return found

    def part(self, *, b: Index = EVERY, heads: Index = EVERY, rows: Index = EVERY, cols: Index = EVERY) -> Scores:
        """Cut q, k and options to some examples, heads, rows and columns of the matrix; the result has no mask."""
        q, k = self.q[b][:, heads][:, :, rows], self.k[b][:, self._key_heads(heads)][:, :, cols]
        places = None if self.slopes is None else self.take_places(rows, cols)
        return Scores(q, k, places=places, **self.take_options({"B": b, "H": heads, "Q": rows, "K": cols}))

    def unmasked(self, out: Tensor | None = None) -> Tensor:
        """Compute the scores without the mask, [B, H, Q, K]. `out`: a buffer for them, if no gradients are needed."""
        with suspend_autocast(self.q.device):
            s = products(self.q.to(self.dtype), self.k.to(self.dtype), out)
        return self.from_products(s, in_place=out is not None)

    def from_products(self, s: Tensor, *, in_place: bool = False) -> Tensor:
        """Compute the scores without the mask, from `s` = q kᵀ [B, H, Q, K]. The scores may overwrite `s`.

        With `in_place` they always overwrite `s`, and no gradient goes through. Every step is rounded to the dtype of
        `s`.
        """
        s = s if self.scale == 1.0 else s.mul_(self.scale)
        if self.softcap is not None:
            s = s.div_(self.softcap).tanh_().mul_(self.softcap) if in_place else capped(s, self.softcap)
        added = self.added()
        if added is not None:
            added = added if added.dtype == s.dtype else finite_as(added, s.dtype)
            s = s.add_(added) if in_place else s + added
        return s

    @property
    def biases(self) -> list[Tensor]:
        """A list with `bias` and `slopes`, each only if it is not None."""
        return [x for x in (self.bias, self.slopes) if x is not None]

    def added(self, **index: Index) -> Tensor | None:
        """Compute what bias and slopes add to the scores: [B|1, H|1, Q|1, K|1]; None = they add nothing.

        `index` cuts the matrix by dimension: Q=rows, K=columns.
        """
        options = self.take_options(index)
        bias = None if self.bias is None else options["bias"].to(self.dtype)
        if self.slopes is None:
            return bias
        q, k = self.take_places(index.get("Q", EVERY), index.get("K", EVERY))
        distances = (k - q[:, None]).abs().to(self.dtype)  # integers up to here, so that large distances are exact
        more = -options["slopes"].to(self.dtype)[:, None, None] * distances
        return more[None] if bias is None else bias + more

    def take_places(self, rows: Index = EVERY, cols: Index = EVERY) -> tuple[Tensor, Tensor]:
        """Return the positions of these rows (queries) and of these columns (keys), one tensor each.

        The last query has the position of the last key.
        """
        if self.places is None:
            q_len, k_len = self.shape[2:]
            return self._positions(2, rows) + (k_len - q_len), self._positions(3, cols)
        return self.places[0][rows], self.places[1][cols]

    def detached(self) -> Scores:
        """Copy what a record keeps of a call: everything except the values, with detached tensors."""
        q, k = self.q.detach(), self.k.detach()
        mask = None if self.mask is None else self.mask.owned()
        return Scores(q, k, mask=mask, places=self.places, share=self.share, **self.detached_options())

    @property
    def used_keys(self) -> Tensor | None:
        """The keys to which some query may attend: bool [B|1, G|1, K], True = used; None = all keys are used."""
        if self.mask is None:
            return None
        q_len, k_len = self.shape[2:]
        low, high = self.mask.band() or (0, 0)
        if low == EMPTY and high >= k_len - q_len:
            return None  # the last query sees every key
        if is_traced():  # by operations alone, which torch can trace
            rows = torch.arange(1 if self.mask.key_only else q_len, device=self.q.device)
            used: Tensor | None = self.mask.cells(rows, self._positions(3, EVERY)).any(-2)
        else:
            used = self.mask.used_keys(q_len, k_len)
        if used is None:
            return None
        if used.shape[1] > 1:
            used = used.unflatten(1, (self.k.shape[1], self.heads_per_key_head)).any(2)
        return used.to(self.k.device)

    def _key_heads(self, heads: Index) -> Index:
        """Return the key heads that these query heads read.

        The result is a slice if each key head is read by equally many of these query heads, else an index tensor with
        one key head for each query head.
        """
        if isinstance(heads, slice) and heads == EVERY:
            return EVERY
        found = (self._positions(1, heads) // self.heads_per_key_head).tolist() or [0]
        size = found.count(found[0])
        regular = len(found) % size == 0 and found == [found[0] + i // size for i in range(len(found))]
        return slice(found[0], found[-1] + 1) if regular else torch.tensor(found, device=self.k.device)

    def _positions(self, dim: int, index: Index) -> Tensor:
        size = self.shape[dim]
        if isinstance(index, slice) and index != EVERY:  # often a few of very many positions
            return torch.arange(*index.indices(size), device=self.q.device)
        return torch.arange(size, device=self.q.device)[index]


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionCall(Scores):
    """One attention computation: out = dropout(A) v, [B, H, Q, E]."""

    v: Tensor = dataclasses.field(kw_only=True)  # [B, G, K, E]

    # Factors [B, G, K] on keys and values of int8. Only `headwise.kernels` gets such calls, and only one kernel can run
    # them: for all others, and for records, `dequantized` gives an ordinary call.
    k_scale: Tensor | None = dataclasses.field(default=None, kw_only=True)
    v_scale: Tensor | None = dataclasses.field(default=None, kw_only=True)

    def dequantized(self) -> AttentionCall:
        """Return the same call, with keys and values in q's dtype."""
        if self.k_scale is None or self.v_scale is None:
            return self
        k, v = (Int8(*x, self.q.dtype).dequantized() for x in ((self.k, self.k_scale), (self.v, self.v_scale)))
        return dataclasses.replace(self, k=k, v=v, k_scale=None, v_scale=None)

    @property
    def trains(self) -> bool:
        """Whether a gradient will be computed through this call."""
        if not torch.is_grad_enabled():
            return False
        if self.q.requires_grad or self.k.requires_grad or self.v.requires_grad:
            return True
        if self.k_scale is not None and self.v_scale is not None:
            return self.k_scale.requires_grad or self.v_scale.requires_grad
        return any([x.requires_grad for x in self.option_tensors().values()])  # noqa: C419 (twice as quick)

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """A hashable tuple of all properties that decide which kernel runs.

        Calls with equal tuples and the same mask have the same plan.
        """
        options = [(name, type(x), x.shape, x.dtype, x.requires_grad) for name, x in self.option_tensors().items()]
        return (
            type(self.q),
            type(self.k),
            type(self.v),
            self.q.shape,
            self.k.shape,
            self.v.shape,
            self.q.dtype,
            self.k.dtype,
            self.q.device,
            self.scale > 0.0,
            self.trains,
            *self.used_options(),
            *options,
        )


def make_call(
    q: Tensor,
    k: Tensor | Int8,
    v: Tensor | Int8,
    *,
    mask: Mask | Tensor | None = None,
    **options: Unpack[OptionArguments],
) -> AttentionCall:
    """Check the arguments of `attention` and put them into one object. Raises ShapeError, DtypeError, MaskError."""
    scales: dict[str, Any] = {}
    if isinstance(k, Int8) and isinstance(v, Int8):
        (q,) = _autocast(q)
        scales = {"k_scale": k.scale, "v_scale": v.scale}
        k, v = k.values, v.values
    else:
        q, k, v = _autocast(q, *(x.dequantized() if isinstance(x, Int8) else x for x in (k, v)))
    shapes.check_qkv(q, k, v, quantized=bool(scales))
    options.setdefault("scale", None)
    checked = check_options(options, q, k.shape[2])
    if mask is not None:
        mask = fit_mask(mask, q, q.shape[1], q.shape[2], k.shape[2])
    return AttentionCall(q, k, mask=mask, v=v, **scales, **checked)


def autocasts(device: torch.device) -> bool:
    """Whether torch.autocast is on for a device."""
    kind = device.type
    return kind != "meta" and torch.is_autocast_enabled(kind)


def products(q: Tensor, k: Tensor, out: Tensor | None = None) -> Tensor:
    """Compute q kᵀ of queries [B, H, Q, D] and keys [B, G, K, D]: [B, H, Q, K], written to `out` if it is not None."""
    # The query heads of one key head are put below one another, so that the keys need not be repeated.
    size = q.shape[1] // k.shape[1]
    if out is None:
        groups = q.unflatten(1, (k.shape[1], size))
        return (groups.flatten(2, 3) @ k.mT).unflatten(2, groups.shape[2:4]).flatten(1, 2)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            torch.mm(q[b, h], k[b, h // size].mT, out=out[b, h])
    return out


def capped(scores: Tensor, softcap: float | Tensor) -> Tensor:
    """Compute softcap · tanh(s / softcap) for each score s."""
    return softcap * torch.tanh(scores / softcap)


def finite_as(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a bias to a narrower dtype. Finite numbers stay finite: finfo.min becomes finfo.min of that dtype."""
    limits = torch.finfo(dtype)
    return torch.where(bias.isinf(), bias, bias.clamp(limits.min, limits.max)).to(dtype)


def _autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast tensors as scaled_dot_product_attention does inside torch.autocast; outside of it, return them unchanged."""
    first = tensors[0]
    if not isinstance(first, Tensor) or not autocasts(first.device):
        return tensors
    dtype = torch.get_autocast_dtype(first.device.type)
    lowered = (torch.float16, torch.bfloat16, torch.float32)
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.dtype in lowered else x for x in tensors)


_AS_IS = nullcontext()


def suspend_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which torch computes in the dtypes that the code names (autocast would lower the scores')."""
    return torch.autocast(device.type, enabled=False) if autocasts(device) else _AS_IS


def fit_mask(mask: object, like: Tensor, heads: int | None, q_len: int, k_len: int, *, name: str = "mask") -> Mask:
    """Make a `Mask`, aligned to Q and K, of a mask or bool tensor. The kind of a tensor is recognised: `masks.tensors`.

    Later changes of the argument do not change the result. Raises DtypeError, ShapeError or MaskError unless the mask
    fits Q, K, `heads` (None = any number), and the batch size and device of `like`. `name`: the argument's name in
    errors.
    """
    if isinstance(mask, Mask):
        key = ("fitted", name, like.shape[0], like.device, heads, q_len, k_len)
        return mask.remember(key, lambda mask: _fitted(mask, like, heads, name).aligned(q_len, k_len))
    fitting = _fitted(as_mask(name, mask), like, heads, name)
    if isinstance(fitting, Dense):
        fitting = recall(fitting, q_len, k_len)
    return fitting.aligned(q_len, k_len)


def _fitted(mask: Mask, like: Tensor, heads: int | None, name: str) -> Mask:
    shapes.check_device(name, mask.device, like)
    shapes.check_fits(name, "B", mask.batch, like.shape[0])
    shapes.check_fits(name, "H", mask.heads, mask.heads or 0 if heads is None else heads)
    return mask
