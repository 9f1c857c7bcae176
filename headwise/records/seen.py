"""`Seen`: the records of all the attention that a model computed, and the questions to ask of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwise.records.coverage import Coverage
from headwise.records.record import AttentionRecord


class Seen:
    """The records of a model's attention, in the order in which it was computed."""

    def __init__(self, records: Sequence[AttentionRecord] = (), coverage: Coverage | None = None) -> None:
        self._records = list(records)
        self._coverage = Coverage() if coverage is None else coverage

    @property
    def records(self) -> list[AttentionRecord]:
        """All records, in order."""
        return self._records

    def coverage(self) -> Coverage:
        """Every place in the model that computes attention: seen, missed or refused, and why."""
        return self._coverage

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[AttentionRecord]:
        return iter(self.records)
