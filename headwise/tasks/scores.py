"""The result of an evaluation: a few scores, and for comparison the same scores of trivial baselines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Scores:
    """The scores of a task on some rows, and of baselines on the same rows.

    Args:
        values: name of the score -> number, in display order.
        count: number of rows.
        baselines: name of the baseline ("always the commonest label") -> name of the score -> number.
        labels, confusion: for a classifier: `[i][j]` = number of rows with true label i and predicted label j.
        left_out: notes on rows that were not scored, one sentence each.
        notes: notes of `fit` on why these scores may be unreliable, one sentence each.
    """

    values: dict[str, float]
    count: int
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the content of scores.json."""
        found: dict[str, Any] = {"scores": self.values, "rows": self.count, "baselines": self.baselines}
        if self.labels:
            found |= {"labels": list(self.labels), "confusion": [list(row) for row in self.confusion]}
        said = {"left_out": list(self.left_out), "notes": list(self.notes)}
        return found | {name: sentences for name, sentences in said.items() if sentences}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Scores:
        """Make the scores from the output of `to_json`."""
        confusion = tuple(tuple(row) for row in found.get("confusion", ()))
        labels, left_out, notes = (tuple(found.get(name, ())) for name in ("labels", "left_out", "notes"))
        return cls(found["scores"], found["rows"], found["baselines"], labels, confusion, left_out, notes)
