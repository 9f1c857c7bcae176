"""The way of a score tensor through a model's own operations, from the product q kᵀ to the softmax.

Hand-written attention is recognised from what it computes, whatever it is called:

    s = q @ k.mT · scale;  s = cap · tanh(s / cap);  s = s + bias;  s = s.masked_fill(m, -inf);  softmax(s) @ v

A `Trail` is what is known of one such tensor. It begins and ends at a product (products.py); operations.py says what
every operation between makes of it. What cannot be said in those terms leaves a `problem` behind, so that the
computation is refused with a reason instead of shown wrong.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Trail:
    """s = Σ terms + factor · [tanh](inner · q kᵀ), and -inf where one of `fills` is True; then perhaps its softmax."""

    q: Tensor  # [*lead, Q, D]
    k: Tensor  # [*lead, K, D]
    lead: tuple[int, ...]  # the scores are [*lead, Q, K]
    dtype: torch.dtype  # in which the scores were computed
    factor: float = 1.0
    inner: float | None = None  # the factor before a tanh
    terms: tuple[tuple[Tensor, float], ...] = ()  # (what was added, times what)
    fills: tuple[tuple[Tensor, float], ...] = ()  # (True = forbidden, filled with what)
    sinks: Tensor | None = None  # a column of scores, [*lead, Q, 1], that stands beside the keys
    sinks_first: bool = False
    sinks_cut: bool = False  # their column was taken away again, after the softmax
    softmax: Tensor | None = None  # the weights, where the softmax was taken
    dropout: float = 0.0
    problem: str = ""
    product: object = dataclasses.field(default_factory=object)  # the same for all that was made of one q kᵀ

    def with_problem(self, problem: str) -> Trail:
        """This trail, refused for a reason; the first one stays."""
        return self if self.problem else dataclasses.replace(self, problem=problem)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor itself."""
        extra = 0 if self.sinks is None or self.sinks_cut else 1
        return (*self.lead, self.q.shape[-2], self.k.shape[-2] + extra)


class Trails:
    """The trails of the tensors that are alive."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[Tensor], Trail, tuple[int | None, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def get(self, x: Any, *, changed: bool = False) -> Trail | None:
        """The trail of `x`, with a problem if it was changed unseen. `changed`: the last operation changed it."""
        found = self._of.get(id(x))
        if not isinstance(x, Tensor) or found is None or found[0]() is not x:
            return None
        _, trail, versions = found
        now = _versions(x, trail)
        if versions[0] is not None and changed:
            now = (versions[0], *now[1:]) if now[0] in (versions[0], versions[0] + 1) else now
        if now != versions:
            return trail.with_problem("the scores were changed in place through another tensor")
        return trail

    def put(self, x: Tensor, trail: Trail | None) -> None:
        key = id(x)
        if trail is None:
            self._of.pop(key, None)
        else:
            of = self._of
            of[key] = (weakref.ref(x, lambda _: of.pop(key, None)), trail, _versions(x, trail))


def _versions(x: Tensor, trail: Trail) -> tuple[int | None, ...]:
    """torch's counts of in-place changes, of a tensor and of what is known of it; inference tensors have none."""
    parts = [x, trail.q, trail.k, *(term for term, _ in trail.terms), *(fill for fill, _ in trail.fills)]
    return tuple(None if part.is_inference() else part._version for part in parts)
