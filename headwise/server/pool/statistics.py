"""`Statistics`: the counts and current numbers of a pool, in constant memory; they are exported as metrics."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Literal

from headwise.errors import RefusalKind

# "ok", "cancelled" (its client disconnected), or the kind of RequestRefused that a row got.
Outcome = Literal["ok", "cancelled", RefusalKind]

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Histogram:
    """Counts how many observed values fall into each interval (bucket), as a Prometheus histogram does.

    Args:
        bounds: upper bounds, ascending, each inclusive.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # per bucket, not cumulative; the last bucket is above all bounds
        self.total = 0.0  # the sum of the values

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Return pairs (bound, number of values that are at most this bound); the last bound is "+Inf"."""
        pairs, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            pairs.append((bound, so_far))
        return pairs


@dataclass
class ModelStatistics:
    """Statistics of one model and version, since it was first loaded.

    Args:
        waiting: rows in the queue now.
        in_flight: rows that workers are computing now.
        outcomes: rows by outcome; a stream counts as one row, and so does an explanation.
        batch_rows: rows per answered batch.
        queue_seconds: per row, from its arrival until a worker got it.
        model_seconds: per batch, in the worker.
    """

    waiting: int = 0
    in_flight: int = 0
    outcomes: dict[Outcome, int] = field(default_factory=dict)
    batch_rows: Histogram = field(default_factory=lambda: Histogram(ROWS))
    queue_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    model_seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def ended(self, outcome: Outcome, rows: int = 1) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + rows


@dataclass
class Statistics:
    """Statistics of a pool.

    Args:
        models: (name, version) -> the statistics of the model. Unloaded models are dropped.
        workers: number of workers that can answer now.
        restarts: attempts to replace a worker that died.
        loads, failed_loads: number of model loads, at the start or by `Engine.load`.
    """

    models: dict[tuple[str, str], ModelStatistics] = field(default_factory=dict)
    workers: int = 0
    restarts: int = 0
    loads: int = 0
    failed_loads: int = 0

    def of(self, name: str, version: str) -> ModelStatistics:
        return self.models.setdefault((name, version), ModelStatistics())
