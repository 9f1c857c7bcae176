"""What an evaluation found: a few numbers, and the same numbers of something trivial."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scores:
    """The scores of a task on some rows.

    Args:
        values: name -> number, in the order in which they are shown.
        count: how many rows they are of.
        baselines: what is trivial ("always the commonest label") -> the same names -> numbers.
        labels, confusion: of a classifier: [i][j] = how many rows with label i were called j.
        left_out: what was not scored, and why, a sentence each.
    """

    values: dict[str, float]
    count: int
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    left_out: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As scores.json has them."""
        found: dict[str, Any] = {"scores": self.values, "rows": self.count, "baselines": self.baselines}
        if self.labels:
            found |= {"labels": list(self.labels), "confusion": [list(row) for row in self.confusion]}
        return found | ({"left_out": list(self.left_out)} if self.left_out else {})

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Scores:
        """The scores that `to_json` gave."""
        confusion = tuple(tuple(row) for row in found.get("confusion", ()))
        labels, left_out = tuple(found.get("labels", ())), tuple(found.get("left_out", ()))
        return cls(found["scores"], found["rows"], found["baselines"], labels, confusion, left_out)
