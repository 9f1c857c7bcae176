"""The result of a comparison of two attention modules: its rows, and the first difference."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from headwise.doctor.comparing.parting import Parting


@dataclasses.dataclass(frozen=True)
class Row:
    """Both modules on the same inputs with the same mask: the largest differences."""

    batch: int
    queries: int
    keys: int
    mask: str
    output: float
    weights: float | None  # None if one of them does not return weights
    inputs: float  # of the gradients of the inputs
    parameters: float  # of the gradients of the parameters that were mapped
    same: bool  # equal up to rounding
    worst: str = ""  # the parameter or input whose gradient differs most
    problem: str = ""  # why the two could not be compared here; the numbers are then NaN

    @property
    def largest(self) -> float:
        return max(
            (x for x in (self.output, self.weights, self.inputs, self.parameters) if x is not None), default=math.nan
        )


@dataclasses.dataclass(frozen=True, repr=False)
class Differences:
    """The differences between two modules, and the first operation where they differ."""

    first: str
    second: str
    dtype: str
    tolerance: float  # relative: differences up to this count as rounding
    rows: tuple[Row, ...]
    mapping: Mapping[str, str]  # "q.weight" -> "to_q.weight = in_proj_weight [1 of 3]"
    parted: Parting | None
    notes: tuple[str, ...] = ()

    @property
    def compared(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.problem)

    @property
    def same(self) -> bool:
        """Whether all differences are within rounding."""
        return all(row.same for row in self.compared)

    @property
    def largest(self) -> float:
        """The largest of all differences."""
        return max(row.largest for row in self.compared)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible values."""
        return {**dataclasses.asdict(self), "same": self.same, "largest": self.largest}
