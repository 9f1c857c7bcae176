"""Edits by any function of a call (one attention computation), of its weights or of its output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.edits.edit import Chosen, Edit, Steps
from headwise.edits.where import Where
from headwise.errors import ArgumentError, ShapeError
from headwise.records.names import Choice

if TYPE_CHECKING:
    from typing_extensions import Unpack

OfCall = Callable[[AttentionCall, Where], AttentionCall]
OfWeights = Callable[[Tensor, Where, slice], Tensor]
OfOutput = Callable[[Tensor, Where], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class _Function(Edit):
    """An edit by a function of the user."""

    f: Callable[..., Any] = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.f):
            raise ArgumentError(f"{self.name}: expected a function. Received: {type(self.f).__name__}")

    def _put(self, found: Tensor, before: Tensor, at: Where) -> Tensor:
        """Return the function's result `found` in the heads that the edit selects, `before` in all other heads."""
        if not isinstance(found, Tensor) or found.shape != before.shape:
            received = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ShapeError(
                f"{self.name}: the function must return a tensor {list(before.shape)}. Received: {received} at "
                f"{at.site}"
            )
        return torch.where(self.cells(at)[:, :, None, None], found.to(before), before)


class Call(_Function):
    """The edit that the function `call` returns."""

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        found = self.f(call, at)
        if not isinstance(found, AttentionCall):
            raise ArgumentError(
                f"call: the function must return an AttentionCall. Received: {type(found).__name__} at {at.site}"
            )
        return found


class Weights(_Function):
    """The edit that the function `weights` returns."""

    def weights(self, weights: Tensor, at: Where, rows: slice) -> Tensor:
        return self._put(self.f(weights.clone(), at, rows), weights, at)  # the function may write to the copy


class Output(_Function):
    """The edit that the function `output` returns."""

    def output(self, out: Tensor, at: Where) -> Tensor:
        return self._put(self.f(out.clone(), at), out, at)


def call(where: Choice, f: OfCall, *, steps: Steps = None) -> Call:
    """Replace each call (one attention computation) by `f(call, at)`.

    For example, `f` may return `dataclasses.replace(call, scale=2 * call.scale)`. The call has q [B, H, Q, D],
    k [B, G, K, D] and v [B, G, K, E], after rotary positions; its mask is aligned to Q and K. `at` is a `Where`: the
    call's layer, step and tokens. The call that `f` returns runs on the kernel that suits it.
    """
    return Call(where, steps=steps, f=f)


def weights(where: Choice, f: OfWeights, **chosen: Unpack[Chosen]) -> Weights:
    """Replace the attention weights by `f(weights, at, rows)`.

    `f` is called for some queries at a time (the slice `rows`), each with all keys: weights [B, H, rows, K]. `at` is a
    `Where`: the call's layer, step and tokens. New weights need not sum to 1. Weights are computed tile by tile, in
    linear memory, which takes longer than a fused kernel.
    """
    return Weights(where, **chosen, f=f)


def output(where: Choice, f: OfOutput, **chosen: Unpack[Chosen]) -> Output:
    """Replace the heads' output [B, H, Q, E], before the output projection, by `f(output, at)`; `at` is a `Where`."""
    return Output(where, **chosen, f=f)
