"""How a score tensor was made from the product q kᵀ, operation by operation, until the softmax.

Hand-written attention is recognised by what it computes, whatever the module is called:

    s = q @ k.mT · scale;  s = cap · tanh(s / cap);  s = s + bias;  s = s.masked_fill(m, -inf);  softmax(s) @ v

A `Trail` describes one such tensor. It begins and ends at a product (products.py); operations.py says how each
operation in between changes it. An operation that these terms cannot describe sets `problem`: the computation is then
refused with that reason, and no wrong record is made.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Trail:
    """s = Σ terms + factor · [tanh](inner · q kᵀ), -inf where one of `fills` is True; later perhaps its softmax."""

    q: Tensor  # [*lead, Q, D]
    k: Tensor  # [*lead, K, D]
    lead: tuple[int, ...]  # the scores are [*lead, Q, K]
    dtype: torch.dtype  # of the scores
    factor: float = 1.0
    inner: float | None = None  # the factor inside tanh; None = no tanh
    terms: tuple[tuple[Tensor, float], ...] = ()  # (tensor that was added, its factor)
    fills: tuple[tuple[Tensor, float], ...] = ()  # (True = forbidden, the value written there)
    sinks: Tensor | None = None  # a column of scores beside the keys, [*lead, Q, 1]
    sinks_first: bool = False
    sinks_cut: bool = False  # that column was removed after the softmax
    softmax: Tensor | None = None  # the weights, after the softmax
    dropout: float = 0.0
    problem: str = ""
    product: object = dataclasses.field(default_factory=object)  # shared by all trails that come from one q kᵀ

    def with_problem(self, problem: str) -> Trail:
        """This trail, refused for a reason; an earlier reason is kept."""
        return self if self.problem else dataclasses.replace(self, problem=problem)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor itself."""
        extra = 0 if self.sinks is None or self.sinks_cut else 1
        return (*self.lead, self.q.shape[-2], self.k.shape[-2] + extra)


class Trails:
    """The trails of the tensors that are alive."""

    def __init__(self) -> None:
        # id -> tensor, its trail, the versions it was written with. (Every torch call asks for its arguments here: a
        # WeakTensorKeyDictionary would take 4 times as long.)
        self._of: dict[int, tuple[weakref.ref[Tensor], Trail, tuple[int | None, ...]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def get(self, x: Any, *, changed: bool = False) -> Trail | None:
        """The trail of `x`, with a problem after an unseen change in place. `changed`: the last operation wrote it."""
        found = self._of.get(id(x))
        if found is None:
            return None
        alive, trail, versions = found[0](), *found[1:]
        if alive is None or alive is not x:
            return None
        now = _versions(alive, trail)
        if versions[0] is not None and changed:
            now = (versions[0], *now[1:]) if now[0] in (versions[0], versions[0] + 1) else now
        if now != versions:
            return trail.with_problem("the scores were changed in place through another tensor")
        return trail

    def put(self, x: Tensor, trail: Trail | None) -> None:
        """Set the trail of `x`; None removes it."""
        key, of = id(x), self._of
        if trail is None:
            of.pop(key, None)
        else:
            of[key] = (weakref.ref(x, lambda _: of.pop(key, None)), trail, _versions(x, trail))


def _versions(x: Tensor, trail: Trail) -> tuple[int | None, ...]:
    """torch's in-place version counters of a tensor and of its trail's tensors; inference tensors have none."""
    parts = [x, trail.q, trail.k, *(term for term, _ in trail.terms), *(fill for fill, _ in trail.fills)]
    return tuple(None if part.is_inference() else part._version for part in parts)
