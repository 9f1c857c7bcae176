"""What a gradient check found, tensor by tensor."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

Verdict = Literal["right", "wrong", "blocked", "unused", "frozen"]


@dataclasses.dataclass(frozen=True)
class TensorGradient:
    """The result for the gradient of one tensor."""

    name: str  # "input query", "q_proj.weight"
    shape: tuple[int, ...]
    checked: int  # how many of its elements
    difference: float  # the largest between autograd's and the numerical gradient
    at: tuple[int, ...]  # the index of that element; () for the random direction
    autograd: float
    numerical: float
    kinks: int  # elements at which the output has no single slope; they are not judged
    # blocked: the output depends on it but it gets no gradient; unused: no dependence; frozen: as intended
    verdict: Verdict

    @property
    def wrong(self) -> bool:
        return self.verdict in ("wrong", "blocked")


@dataclasses.dataclass(frozen=True, repr=False)
class CheckedGradients:
    """The gradients of a module that were checked."""

    subject: str
    dtype: str  # of the computation
    tolerance: float  # relative, in addition to rounding
    tensors: tuple[TensorGradient, ...]
    notes: tuple[str, ...] = ()
    problem: str = ""  # why there is no gradient at all

    @property
    def right(self) -> bool:
        return not self.problem and not any(x.wrong for x in self.tensors)

    @property
    def wrong(self) -> tuple[TensorGradient, ...]:
        return tuple(x for x in self.tensors if x.wrong)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible values."""
        return {**dataclasses.asdict(self), "right": self.right}
