"""Sharper or sparser attention: a temperature, only the largest weights of each row, a window."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise import masks
from headwise.call import AttentionCall
from headwise.edits.edit import Chosen, Edit, check_factor
from headwise.edits.where import Where
from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.records.names import Choice

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclasses.dataclass(frozen=True, eq=False)
class Temperature(Edit):
    """The edit that the function `temperature` returns."""

    t: float = dataclasses.field(kw_only=True)

    @property
    def sets(self) -> str:
        return "temperature"

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        """Return the call with its scores, biases and sinks divided by the temperature, in the selected heads."""
        t = torch.where(self.cells(at), self.t, 1.0).to(call.dtype)[:, :, None, None]
        whole = self.everywhere(at)
        changes: dict[str, Any] = {}
        if call.softcap is not None:
            if not whole:
                raise ArgumentError(
                    f"temperature: {at.site} caps its scores, so that its heads and examples have one temperature. "
                    "Received: some of them"
                )
            changes = {"scale": call.scale / self.t, "softcap": call.softcap / self.t}
        elif whole:
            changes = {"scale": call.scale / self.t}
        else:
            changes = {"q": call.q / t.to(call.q.dtype)}
        if call.bias is not None:
            changes["bias"] = call.bias / (self.t if whole else t)
        per_head = t[0, :, 0, 0]
        if (call.slopes is not None or call.sinks is not None) and not bool((t == t[:1]).all()):
            raise ArgumentError(
                f"temperature: slopes and sinks of {at.site} are those of all examples. Received: examples="
            )
        if call.slopes is not None:
            changes["slopes"] = call.slopes / per_head.to(call.slopes.dtype)
        if call.sinks is not None:
            changes["sinks"] = call.sinks / per_head.to(call.sinks.dtype)
        return dataclasses.replace(call, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class TopK(Edit):
    """The edit that the function `topk` returns."""

    k: int = dataclasses.field(kw_only=True)

    def weights(self, weights: Tensor, at: Where, rows: slice) -> Tensor:
        """Set all but the k largest weights of each row to 0, and scale these to the sum that the whole row had."""
        if self.k >= weights.shape[-1]:
            return weights
        largest = weights.topk(self.k, -1)
        kept = torch.zeros_like(weights).scatter(-1, largest.indices, largest.values)
        kept = kept * (weights.sum(-1, keepdim=True) / kept.sum(-1, keepdim=True).clamp(min=1e-30))
        return torch.where(self.cells(at)[:, :, None, None], kept, weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Window(Edit):
    """The edit that the function `window` returns."""

    before: int = dataclasses.field(kw_only=True)
    after: int = dataclasses.field(kw_only=True)
    first: int = dataclasses.field(kw_only=True)

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        q_len, k_len = call.shape[2:]
        found: Mask = masks.window(self.before, self.after)
        if at.share is None:
            found = dataclasses.replace(found, offset=at.shift)  # type: ignore[call-arg]
        else:
            found = masks.picked(found.aligned(at.share.length, at.share.length), at.share.rows, at.share.cols)
        if self.first:
            keys = (at.keys >= 0) & (at.keys < self.first)
            found = found | masks.padding(keys)
        found = found.aligned(q_len, k_len)
        if not self.everywhere(at):
            queries, keys = (torch.ones(n, dtype=torch.bool, device=at.device) for n in (q_len, k_len))
            found = found | masks.knockout(queries, keys, self.cells(at)).aligned(q_len, k_len)
        return dataclasses.replace(call, mask=found if call.mask is None else call.mask & found)


def temperature(where: Choice, t: float, **chosen: Unpack[Chosen]) -> Temperature:
    """Divide the scores (with their biases) and sinks by `t`: t > 1 makes the weights more even, t < 1 sharper."""
    check_factor("temperature: t", t)
    if isinstance(t, Tensor):
        raise ArgumentError("temperature: t must be a number. Received: a tensor")
    return Temperature(where, t=float(t), **chosen)


def topk(where: Choice, k: int, **chosen: Unpack[Chosen]) -> TopK:
    """Keep only the `k` largest weights of each query, and normalise them again: shows what the model loses."""
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ArgumentError(f"topk: k must be an int of at least 1. Received: k={k!r}")
    return TopK(where, k=k, **chosen)


def window(
    where: Choice,
    before: int,
    after: int = 0,
    *,
    first: int = 0,
    **chosen: Unpack[Chosen],
) -> Window:
    """Let each query attend only to its own key, `before` keys before it and `after` keys after it.

    The edit is a mask, so attention stays on the same kernels. Pairs that the model's own mask forbids stay forbidden.
    `first`: the number of keys at the beginning that every query may still attend to (attention sinks, Xiao et al.
    2024).
    """
    for name, value in (("before", before), ("after", after), ("first", first)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ArgumentError(f"window: {name} must be an int of at least 0. Received: {name}={value!r}")
    return Window(where, before=before, after=after, first=first, **chosen)
