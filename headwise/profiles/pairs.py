"""Finds the pairs of tokens with the most weight in each head, by a sketch (an approximate summary) of bounded size."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

CAPACITY = 256  #: the number of pairs for each head
ALL = 2**62  # the capacity of a sketch that drops nothing


@dataclass
class PairSketch:
    """For each head of a layer, the at most `capacity` pairs (query token, key token) with the most weight.

    A weighted Misra-Gries summary, merged as in Agarwal et al. 2012, "Mergeable Summaries": the counters of two
    summaries are added, the (capacity + 1)-th largest is subtracted from all, and counters that are not above 0 are
    dropped. It guarantees that the true weight of a pair lies between `weight` and `weight + error[h]`, that a dropped
    pair has a weight of at most `error[h]`, and that error[h] ≤ total[h] / (capacity + 1). With up to `capacity`
    different pairs the sketch is exact. A pair is stored as one number, its code: query id · 2³² + key id.
    """

    heads: int
    capacity: int = CAPACITY
    codes: list[Tensor] = field(default_factory=list)  # for each head int64 [n ≤ capacity], ascending
    weights: list[Tensor] = field(default_factory=list)  # float64 [n]
    error: Tensor = field(init=False)  # float64 [H]
    total: Tensor = field(init=False)  # float64 [H], the sum of all weight that was added

    def __post_init__(self) -> None:
        self.error = torch.zeros(self.heads, dtype=torch.float64)
        self.total = torch.zeros(self.heads, dtype=torch.float64)
        if not self.codes:
            self.codes = [torch.empty(0, dtype=torch.long) for _ in range(self.heads)]
            self.weights = [torch.empty(0, dtype=torch.float64) for _ in range(self.heads)]

    def add(self, head: int, codes: Tensor, weights: Tensor) -> None:
        """Add pairs to a head: their codes [n], in any order and also repeated, and their weights [n]."""
        self.total[head] += weights.double().sum()
        self._join(head, *_summed(codes, weights.double()))

    def merge(self, other: PairSketch) -> None:
        """Add the pairs, totals and errors of another sketch, which must have the same number of heads."""
        self.total += other.total
        self.error += other.error
        for head in range(self.heads):
            self._join(head, other.codes[head], other.weights[head])

    def _join(self, head: int, codes: Tensor, weights: Tensor) -> None:
        both, sums = _summed(torch.cat([self.codes[head], codes]), torch.cat([self.weights[head], weights]))
        if len(both) > self.capacity:
            cut = sums.topk(self.capacity + 1).values[-1]
            self.error[head] += cut
            sums -= cut
            left = sums > 0
            both, sums = both[left], sums[left]
        self.codes[head], self.weights[head] = both, sums

    def strongest(self, head: int, count: int) -> list[tuple[int, float]]:
        """Return the `count` pairs of a head with the most weight, the highest first: a list of (code, weight)."""
        order = self.weights[head].argsort(descending=True, stable=True)[:count]
        return list(zip(self.codes[head][order].tolist(), self.weights[head][order].tolist(), strict=True))


def _summed(codes: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sum the weights of equal codes; return (each code once, ascending; the summed weight of each)."""
    once, place = codes.unique(return_inverse=True)
    return once, torch.zeros(len(once), dtype=torch.float64).index_add_(0, place, weights)
