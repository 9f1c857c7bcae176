"""Where two computations first differ: their recordings, compared stage by stage.

Two modules may store the same numbers in different layouts ([B·H, N, D] or [B, H, N, D], transposed, fused), so tensors
are compared by their sorted numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.doctor.comparing.recording import STAGES, Recording, Step
from headwise.doctor.finding import Where

_MASKED = -1e3  # lower scores count as masked: -1e4, -1e9 and -inf mean the same
_MOVES = {
    *("view", "_unsafe_view", "_reshape_alias", "t", "transpose", "permute", "expand", "clone", "squeeze", "unsqueeze"),
    *("slice", "select", "split", "split_with_sizes", "unbind", "alias", "detach", "as_strided", "contiguous", "chunk"),
    *("narrow", "unsafe_split", "unsafe_chunk", "_to_copy", "lift_fresh", "cat", "stack", "repeat", "index", "movedim"),
}


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a module, and its line."""

    name: str
    shape: tuple[int, ...]
    where: Where | None

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where else ""
        code = f": {self.where.code}" if self.where and self.where.code else ""
        return f"{self.name} → {list(self.shape)}{at}{code}"


@dataclasses.dataclass(frozen=True)
class Parting:
    """The first stage that differs, and the operation in each module that causes it."""

    stage: str  # of STAGES, or "gradients", or "returned weights"
    difference: float  # between the sorted numbers; inf if their counts differ
    first: Operation | None
    second: Operation | None
    agreed: tuple[str, ...]  # the stages before it
    ratio: float | None = None  # if the first's numbers are the second's times a constant


class Comparer:
    """Two recordings, stage by stage."""

    def __init__(self, first: Recording, second: Recording, tolerance: float) -> None:
        self.first, self.second, self.tolerance = first, second, tolerance
        self._sorted: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []  # keeps tensors alive, so that no id is reused

    def part(self) -> Parting | None:
        """The first stage that differs; None if there is none."""
        agreed: list[str] = []
        before: tuple[set[int], set[int]] = set(), set()  # tensors made before or at the stages that agree
        for stage in STAGES:
            mine, theirs = self.first.stage(stage), self.second.stage(stage)
            if not mine or not theirs:
                continue
            pair = self._alike_pair(mine, theirs, stage)
            if pair is not None:
                agreed.append(stage)
                for known, recording, step in zip(before, (self.first, self.second), pair, strict=True):
                    known.update(x.number for x in recording.ancestors(step))
                continue
            difference, ratio = self._apart(mine[-1], theirs[-1], stage)
            first = self._operation(self.first, self.second, mine[-1], before[0], exact=ratio is not None)
            second = self._operation(self.second, self.first, theirs[-1], before[1], exact=ratio is not None)
            return Parting(stage, difference, first, second, tuple(agreed), ratio)
        return None

    def _alike_pair(self, mine: Sequence[Step], theirs: Sequence[Step], stage: str) -> tuple[Step, Step] | None:
        if stage == "output":
            near = largest_difference(mine[0].value, theirs[0].value) <= self.tolerance * size_of(theirs[0].value)
            return (mine[0], theirs[0]) if near else None
        if stage == "values":  # no operation changes them on the way
            alike = _close(self._numbers(mine[-1], stage), self._numbers(theirs[-1], stage), self.tolerance)
            return (mine[-1], theirs[-1]) if alike else None
        pairs = ((x, y) for x in reversed(mine) for y in reversed(theirs))
        return next((pair for pair in pairs if self._alike(*pair, stage)), None)

    def _alike(self, x: Step, y: Step, stage: str) -> bool:
        if _close(self._numbers(x, stage), self._numbers(y, stage), self.tolerance):
            return True
        if stage != "scores":
            return False
        # A softmax does not change if a constant is added to a row.
        return _close(_from_top(x, self.first), _from_top(y, self.second), self.tolerance)

    def _numbers(self, x: Step, stage: str = "") -> Tensor:
        key = id(x.value)
        if key not in self._sorted:
            self._sorted[key] = x.value.double().flatten().sort().values
            self._kept.append(x.value)
        numbers = self._sorted[key]
        if stage in ("keys", "values"):  # one of them may repeat these for several heads
            return numbers.unique_consecutive()
        return numbers.clamp(min=_MASKED) if stage == "scores" else numbers

    def _apart(self, x: Step, y: Step, stage: str) -> tuple[float, float | None]:
        """How far the numbers of a stage differ, and their ratio if it is the same for all."""
        if stage == "output":
            return largest_difference(x.value, y.value), None
        a, b = self._numbers(x, stage), self._numbers(y, stage)
        if a.numel() != b.numel():
            return torch.inf, None
        inside = (a > _MASKED / 2) & (b > _MASKED / 2)
        difference = largest_difference(a, b)
        a, b = a[inside], b[inside]
        if not a.numel() or not float(b @ b):
            return difference, None
        ratio = float(a @ b / (b @ b))
        return difference, ratio if _close(a, ratio * b, max(self.tolerance, 1e-9)) else None

    def _operation(
        self, one: Recording, other: Recording, step: Step, known: set[int], *, exact: bool
    ) -> Operation | None:
        """The first operation between `known` and a stage whose result does not occur in the other module.

        Unless `exact`, a multiple of a tensor of the other module counts as equal: the order of scaling is ignored.
        """
        elsewhere: dict[int, list[Step]] = {}
        for x in other.steps:
            if x.live:
                elsewhere.setdefault(x.value.numel(), []).append(x)
        skipped = (*_MOVES, "input")
        way = [x for x in one.ancestors(step) if x.live and x.number not in known and x.name not in skipped]
        for x in way:
            others = elsewhere.get(x.value.numel(), ())
            if not any(self._same_numbers(x, y, exact) for y in others):
                return Operation(x.name, tuple(x.value.shape), x.where)
        return Operation(way[-1].name, tuple(way[-1].value.shape), way[-1].where) if way else None

    def _same_numbers(self, x: Step, y: Step, exact: bool) -> bool:
        a, b = self._numbers(x), self._numbers(y)
        if not exact and a.numel() and bool(a.isfinite().all()) and bool(b.isfinite().all()):
            a, b = a / a.abs().max().clamp(min=1e-30), b / b.abs().max().clamp(min=1e-30)
        return _close(a, b, self.tolerance)


def _from_top(x: Step, recording: Recording) -> Tensor:
    """Scores relative to the largest of their row, sorted."""
    weights = recording.stage("weights")
    dim = weights[0].dim if weights else None
    value = x.value.double()
    if dim is None or dim >= value.ndim:
        return value.flatten().sort().values
    top = value.amax(dim, keepdim=True).nan_to_num(neginf=0.0)
    return (value - top).clamp(min=_MASKED).flatten().sort().values


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.numel() == b.numel() and largest_difference(a, b) <= tolerance * size_of(b)


def size_of(x: Tensor) -> float:
    """The largest finite absolute value, at least 1: the reference for relative differences."""
    finite = x[x.isfinite()]
    return max(1.0, float(finite.abs().max())) if finite.numel() else 1.0


def largest_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference; equal infinities, and NaN in both, count as none."""
    if a.shape != b.shape:
        return torch.inf
    if not a.numel():
        return 0.0
    same = (a == b) | (a.isnan() & b.isnan())
    apart = (a.double() - b.double()).abs().masked_fill(same, 0.0)
    return float(apart.nan_to_num(nan=torch.inf).max())
