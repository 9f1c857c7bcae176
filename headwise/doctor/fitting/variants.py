"""Attention as a sequence of decisions, each of which some implementation gets wrong, computed in float64.

A `Variant` is one set of decisions; its defaults are right. `Computation` computes variants from a module's projections
and caches every intermediate result, so that hundreds of them cost little more than one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.doctor.fitting.decisions import AXES, MERGES, SCALES, SPLITS
from headwise.doctor.fitting.inner_norms import InnerNorms, Norm
from headwise.doctor.fitting.projections import Projections
from headwise.nn.positions import alibi


@dataclasses.dataclass(frozen=True)
class Rope:
    """How queries and keys are rotated. Either pairing is right if it is used consistently."""

    pairing: Literal["half", "neighbours"] = "half"  # which two columns form a pair
    angles: Literal["half", "neighbours"] = "half"  # the order of the angles
    on: str = "qk"  # which of q, k, v are rotated
    opposite: bool = False  # keys are rotated the other way
    minus: bool = True  # (x1 cos - x2 sin, ...); without it columns are mixed, not rotated
    before_split: bool = False  # over the whole width, so that heads differ in frequencies
    frequencies: int = 0  # index into the computation's tables


@dataclasses.dataclass(frozen=True)
class Variant:
    """The decisions of one attention layer, in their order. The defaults are the definition."""

    # Projections. Letters stand for queries, keys and values, in this order.
    inputs: str = "qkv"  # the argument that each of the three is computed from
    weights: str = "qkv"  # by which projection; "-" for none: the input itself
    turned: str = ""  # the projections ("q", "k", "v", "o") whose matrix is transposed
    unbiased: str = ""  # the projections without their bias
    # Heads
    split: str = "heads"
    split_of: str = "qkv"  # which of the three are split this way; the others are split as usual
    norms: str = "qk"  # whose norm queries and keys get, in modules with such norms; "-" for none
    groups: Literal["neighbours", "tiled"] = "neighbours"  # which query heads share a key head
    rope: Rope | None = None
    # Scores
    transposed: bool = False  # k qᵀ instead of q kᵀ
    one_pattern: bool = False  # scores summed over heads
    scale: str | float = "sqrt(head width)"  # a name of SCALES, or the factor itself
    alibi: str = ""
    causal: str = ""
    causal_fill: float = -math.inf
    mask: str = "fill"
    mask_fill: float = -math.inf
    axis: str = "keys"
    # Output
    mixed: Literal["keys", "queries", "evenly"] = "keys"  # what the weighted sum runs over
    merge: str = "heads"
    output: Literal["projected", "missing"] = "projected"
    residual: bool = False  # the input is added


def altered(variant: Variant, **change: Any) -> Variant:
    """`dataclasses.replace`, in a fifth of the time: thousands are made for each module."""
    found = object.__new__(Variant)
    vars(found).update(vars(variant))
    vars(found).update(change)
    return found


NO_NORMS = InnerNorms()
FUSED_VIEWS = ("3 b h n", "b 3 h n", "b h n 3", "b h 3 n")


class Inapplicable(Exception):  # noqa: N818 (says that a variant cannot be computed here)
    """These decisions do not fit these shapes."""


class Computation:
    """Variants of attention over one set of projections and inputs.

    Args:
        projections: the module's.
        query, key, value: float64 [B, N, M].
        allowed: bool, broadcastable to [B, 1, Q, K], True = may attend; None = no mask is passed.
        frequencies: RoPE's tables to choose from, each [pairs].
        pattern: bool [Q, K], the mask of `causal="observed"`.
        norms: where norms act.
    """

    def __init__(
        self,
        projections: Projections,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        allowed: Tensor | None = None,
        frequencies: tuple[Tensor, ...] = (),
        pattern: Tensor | None = None,
        norms: InnerNorms = NO_NORMS,
    ) -> None:
        self.projections = projections
        self.query = query  # the tensor that a residual adds
        self.norms = norms
        self.pattern = pattern
        self.x = {"q": query, "k": key, "v": value}
        if norms.query is not None:
            self.x["q"] = norms.query(query)
        if norms.memory is not None:
            self.x |= {"k": norms.memory(key), "v": norms.memory(value)}
        self.allowed = allowed
        self.frequencies = frequencies
        self.heads, self.kv_heads = projections.heads, projections.kv_heads
        self._kept: dict[tuple[Any, ...], Tensor] = {}

    def output(self, variant: Variant, columns: int | None = None) -> Tensor:
        """The output of the variant, [B, Q, Mo], or only its first `columns`; Inapplicable if its shapes do not fit."""
        try:
            return self._output(variant, columns)
        except (RuntimeError, IndexError) as error:  # torch's errors for shapes that do not fit
            raise Inapplicable(str(error)) from None

    def factor(self, variant: Variant) -> float:
        """The factor of the scores."""
        if not isinstance(variant.scale, str):
            return variant.scale
        width, length = self.x["q"].shape[-1], self.x["k"].shape[1]
        return SCALES[variant.scale](self.projections.head_width, width, self.heads, length)

    def _output(self, variant: Variant, columns: int | None) -> Tensor:
        p = self.projections
        merged = self._merged(variant)
        kept = columns
        columns = columns if self.norms.output is None else None  # a norm needs all of them
        if p.o is None or variant.output == "missing":
            out = merged if columns is None else merged[..., :columns]
        else:
            turned = "o" in variant.turned
            matrix = self._keep(("o", turned, columns), lambda: self._output_matrix(turned, columns))
            out = merged @ matrix
            if p.o_bias is not None and "o" not in variant.unbiased:
                out = out + p.o_bias[:columns]
        if variant.residual:
            out = out + self.query[..., : out.shape[-1]]
        return out if self.norms.output is None else self.norms.output(out)[..., :kept]

    def _output_matrix(self, turned: bool, columns: int | None) -> Tensor:
        assert self.projections.o is not None
        matrix = self.projections.o.flatten(0, 1)
        return (matrix.t() if turned else matrix)[:, :columns].contiguous()

    def _keep(self, key: tuple[Any, ...], make: Callable[[], Tensor]) -> Tensor:
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = make()
        return found

    def _merged(self, v: Variant) -> Tensor:
        key = (*_of_weights(v), v.weights, v.turned, v.unbiased, v.inputs, v.mixed, v.merge)
        return self._keep(("merged", *key), lambda: MERGES[v.merge](self._mixed(v)))

    def _mixed(self, v: Variant) -> Tensor:
        """[B, H, Q, E]: the sums of the values."""
        weights, values = self._weights(v), self._shared(v, "v")
        if v.mixed == "queries":
            return weights.transpose(-1, -2) @ values
        if v.mixed == "evenly":
            return (weights.sum(-1, keepdim=True) * values.sum(-2, keepdim=True)).expand(*weights.shape[:3], -1)
        return weights @ values

    def _weights(self, v: Variant) -> Tensor:
        return self._keep(("weights", *_of_weights(v)), lambda: self._make_weights(v))

    def _make_weights(self, v: Variant) -> Tensor:
        s = self._scores(v) * self.factor(v)
        b, _, q_len, k_len = s.shape
        if v.alibi:
            s = s + self._alibi(v, q_len, k_len)
        after: list[Callable[[Tensor], Tensor]] = []
        if v.causal:
            s = self._apply_causal(v, s, after)
        if self.allowed is not None and v.mask != "ignored":
            s = self._apply_mask(v, s, b, after)
        a = AXES[v.axis](s)
        for change in after:
            a = change(a)
        return a

    def _apply_causal(self, v: Variant, s: Tensor, after: list[Callable[[Tensor], Tensor]]) -> Tensor:
        if v.causal == "observed":
            if self.pattern is None:
                raise Inapplicable("no pattern was observed")
            return s.masked_fill(~self.pattern, _fill(v, v.causal_fill))
        past = self._keep(("past", v.causal, *s.shape[-2:]), lambda: _past(v.causal, *s.shape[-2:]))
        if v.causal == "weights":
            after.append(lambda a: a * past)
            return s
        return s.masked_fill(~past, _fill(v, v.causal_fill))

    def _apply_mask(self, v: Variant, s: Tensor, b: int, after: list[Callable[[Tensor], Tensor]]) -> Tensor:
        assert self.allowed is not None
        allowed, how = self.allowed, v.mask
        if how.startswith("queries"):
            allowed = allowed.transpose(-1, -2)
        elif how == "flipped":
            allowed = ~allowed
        elif how == "head order":
            full = allowed.expand(b, s.shape[1], *allowed.shape[2:]).transpose(0, 1)
            allowed = full.reshape(b, s.shape[1], *allowed.shape[2:])
        elif how == "example order":
            full = allowed.expand(b, s.shape[1], *allowed.shape[2:])
            allowed = full.reshape(s.shape[1], b, *allowed.shape[2:]).transpose(0, 1)
        elif how == "first example":
            allowed = allowed[:1]
        elif how == "first query":
            allowed = allowed[:, :, :1]
        numbers = allowed.to(s.dtype)
        if how == "added allowed":
            return s + numbers
        if how == "added forbidden":
            return s + (1 - numbers)
        if how == "subtracted":
            return s - (1 - numbers)
        if how == "added before scale":
            return s + numbers * self.factor(v)
        if how == "added forbidden before scale":
            return s + (1 - numbers) * self.factor(v)
        if how == "multiplied flipped":
            return s * (1 - numbers)
        if how == "weights":
            after.append(lambda a: a * numbers)
            return s
        if how == "weights flipped":
            after.append(lambda a: a * (1 - numbers))
            return s
        if how == "weights filled":
            after.append(lambda a: a.masked_fill(~allowed, v.mask_fill))
            return s
        return s.masked_fill(~allowed, _fill(v, v.mask_fill))

    def _alibi(self, v: Variant, q_len: int, k_len: int) -> Tensor:
        """[H, Q, K]"""
        heads = self.heads
        device = self.x["q"].device
        ids = torch.arange(1, heads + 1, dtype=torch.float64, device=device)
        slopes = 2.0 ** (-8.0 * ids / heads)
        if v.alibi == "from zero":
            slopes = 2.0 ** (-8.0 * (ids - 1) / heads)
        elif v.alibi != "naive":
            slopes = torch.tensor(alibi.slopes(heads), dtype=torch.float64, device=device)
        if v.alibi == "reversed":
            slopes = slopes.flip(0)
        q = torch.arange(q_len, device=device)[:, None] + (k_len - q_len)
        distance = (q - torch.arange(k_len, device=device)).abs().to(torch.float64)
        bias = -slopes[:, None, None] * distance
        if v.alibi == "positive":
            return -bias
        return bias * self.factor(v) if v.alibi == "scaled" else bias

    def _scores(self, v: Variant) -> Tensor:
        return self._keep(("scores", *_of_scores(v)), lambda: self._make_scores(v))

    def _make_scores(self, v: Variant) -> Tensor:
        q, k = self._shared(v, "q"), self._shared(v, "k")
        s = k @ q.transpose(-1, -2) if v.transposed else q @ k.transpose(-1, -2)
        return s.sum(1, keepdim=True).expand_as(s) if v.one_pattern else s

    def _shared(self, v: Variant, role: str) -> Tensor:
        """[B, H, N, D]: a key head repeated for the query heads that share it."""
        x = self._headed(v, role)
        if role == "q" or x.shape[1] in (self.heads, 1) or v.split in ("over heads",):
            return x
        times = self.heads // x.shape[1]
        return x.repeat(1, times, 1, 1) if v.groups == "tiled" else x.repeat_interleave(times, 1)

    def _headed(self, v: Variant, role: str) -> Tensor:
        at = "qkv".index(role)
        rotated = v.rope if v.rope is not None and role in v.rope.on else None
        split = v.split if role in v.split_of or v.split in FUSED_VIEWS else "heads"
        key = ("headed", role, v.inputs[at], v.weights[at], *_for_role(v, role), split, rotated, v.norms)
        return self._keep(key, lambda: self._make_headed(v, role, split, rotated).contiguous())

    def _make_headed(self, v: Variant, role: str, split: str, rope: Rope | None) -> Tensor:
        if split in FUSED_VIEWS:
            return self._fused_view(v, role, split)
        x = self._projected(v, role)
        heads = self.heads if role == "q" else self.kv_heads
        if x.shape[-1] % heads:
            raise Inapplicable("the number of columns is not divisible by the number of heads")
        norm = self._norm(v, role)
        if norm is not None and norm[0] == x.shape[-1] != x.shape[-1] // heads:
            x = norm[1](x)
        if rope is not None and rope.before_split:
            x = self._rotated(x, rope, role)
        y = SPLITS[split](x, heads)
        if norm is not None and norm[0] == y.shape[-1]:
            y = norm[1](y)
        return self._rotated(y, rope, role) if rope is not None and not rope.before_split else y

    def _norm(self, v: Variant, role: str) -> tuple[int, Norm] | None:
        return None if role == "v" else self.norms.heads.get(v.norms["qk".index(role)])

    def _fused_view(self, v: Variant, role: str, order: str) -> Tensor:
        """A fused projection [B, N, 3·H·D] whose axes are named in another order than that in memory."""
        p = self.projections
        if p.kind != "fused" or p.layout or p.heads != p.kv_heads:
            raise Inapplicable("not a fused projection in thirds")
        fused = torch.cat([self._projected(v, each) for each in "qkv"], -1)
        b, n, _ = fused.shape
        sizes = {"3": 3, "b": b, "h": p.heads, "n": n}
        labels = order.split()
        y = fused.reshape(*[sizes[label] for label in labels], -1)
        y = y.select(labels.index("3"), "qkv".index(role))
        return y

    def _projected(self, v: Variant, role: str) -> Tensor:
        at = "qkv".index(role)
        letter, source = v.weights[at], self.x[v.inputs[at]]
        key = ("projected", letter, v.inputs[at], letter in v.turned, letter in v.unbiased)
        return self._keep(key, lambda: self._project(source, letter, letter in v.turned, letter in v.unbiased))

    def _project(self, source: Tensor, letter: str, turned: bool, unbiased: bool) -> Tensor:
        if letter == "-":
            return source
        p = self.projections
        weight = {"q": p.q, "k": p.k, "v": p.v}[letter]
        bias = {"q": p.q_bias, "k": p.k_bias, "v": p.v_bias}[letter]
        matrix = weight.transpose(0, 1).flatten(1)  # [M, h·D]
        if turned:
            if matrix.shape[0] != matrix.shape[1]:
                raise Inapplicable("not square")
            matrix = matrix.t()
        y = source @ matrix
        return y if bias is None or unbiased else y + bias.flatten()

    def _rotated(self, x: Tensor, rope: Rope, role: str) -> Tensor:
        """x [..., N, D] rotated by its position."""
        theta = self.frequencies[rope.frequencies]
        d, n = x.shape[-1], x.shape[-2]
        if rope.before_split:
            theta = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)
        turned = 2 * theta.shape[0]
        if turned > d:
            raise Inapplicable("more angles than columns")
        angle = torch.arange(n, dtype=torch.float64, device=x.device)[:, None] * theta
        if rope.opposite and role == "k":
            angle = -angle
        angle = angle.repeat(1, 2) if rope.angles == "half" else angle.repeat_interleave(2, 1)
        part, rest = x[..., :turned], x[..., turned:]
        if rope.pairing == "half":
            first, second = part.chunk(2, -1)
            other = torch.cat([-second if rope.minus else second, first], -1)
        else:
            first, second = part[..., 0::2], part[..., 1::2]
            other = torch.stack([-second if rope.minus else second, first], -1).flatten(-2)
        return torch.cat([part * angle.cos() + other * angle.sin(), rest], -1)


def _past(causal: str, q_len: int, k_len: int) -> Tensor:
    """The cells [Q, K] that a causal mask of this kind allows."""
    q, k = torch.arange(q_len)[:, None] + (k_len - q_len), torch.arange(k_len)
    return {
        "right": k <= q,
        "strict": k < q,
        "one ahead": k <= q + 1,
        "future": k >= q,
        "strict future": k > q,
        "weights": k <= q,
    }[causal]


def _fill(v: Variant, fill: float) -> float:
    """-1e9 instead of -inf for a softmax over another axis, where all cells may be masked: -inf would give NaN."""
    return -1e9 if fill == -math.inf and v.axis not in ("keys", "none") else fill


def _for_role(v: Variant, role: str) -> tuple[Any, ...]:
    letter = v.weights["qkv".index(role)]
    if v.split in FUSED_VIEWS:  # a fused view mixes all three
        return v.inputs, v.weights, v.turned, v.unbiased
    return letter in v.turned, letter in v.unbiased


def _of_scores(v: Variant) -> tuple[Any, ...]:
    if v.split in FUSED_VIEWS:
        made = (v.inputs, v.weights, v.turned, v.unbiased)
    else:
        made = (v.inputs[:2], v.weights[:2], *_for_role(v, "q"), *_for_role(v, "k"))
    return (*made, v.split, v.split_of, v.norms, v.groups, v.rope, v.transposed, v.one_pattern)


def _of_weights(v: Variant) -> tuple[Any, ...]:
    masked = (v.causal, v.causal_fill, v.mask, v.mask_fill)
    return (*_of_scores(v), v.scale, v.alibi, *masked, v.axis)
