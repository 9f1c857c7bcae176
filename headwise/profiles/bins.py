"""Defines the measures (numbers for each query of a head), and the bins of their histograms, fixed to save memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BINS = 24  #: the number of bins of each histogram
NEAR = 16  #: relative positions -NEAR … NEAR have a bin each; farther positions share two bins
OFFSETS = ("farther left", *(f"{d:+d}" if d else "0" for d in range(-NEAR, NEAR + 1)), "farther right")


@dataclass(frozen=True)
class Measure:
    """A number that is computed for each query of a head, and the bins of its histogram.

    `log`: the bins have equal width in log2(1 + x), for counts of tokens; else in x. The last bin also counts all
    larger values.
    """

    name: str
    unit: str
    sentence: str
    log: bool = False

    def top(self, length: int) -> float:
        """Return the upper edge of the last bin, for windows of at most `length` tokens; in log2(1 + x) if `log`."""
        if self.name == "entropy":
            return math.log(max(2, length))
        return math.log2(1 + length) if self.log else 1.0

    def edges(self, length: int) -> list[float]:
        """Return the BINS + 1 edges of the bins, in the unit of the measure, for windows of at most `length` tokens."""
        step = self.top(length) / BINS
        return [2 ** (i * step) - 1 if self.log else i * step for i in range(BINS + 1)]

    def counts(self, x: Tensor, length: int) -> Tensor:
        """Make the histogram of each row of `x` [H, N]: how many numbers are in each bin, int64 [H, BINS]."""
        scaled = torch.log2(1 + x) if self.log else x
        place = (scaled * (BINS / self.top(length))).long().clamp(0, BINS - 1)
        place += BINS * torch.arange(len(x), device=x.device)[:, None]
        return torch.bincount(place.flatten(), minlength=BINS * len(x)).view(-1, BINS)


#: First the five that `headwise.records.statistics` computes from a record, then two that also need the tokens.
MEASURES = (
    Measure("entropy", "nats", "How widely a query spreads its attention: 0 looks at one key only."),
    Measure("distance", "tokens", "How far away the keys are that a query attends to, on average.", log=True),
    Measure("keys_needed", "keys", "The fewest keys that hold 90 % of the weight of a query.", log=True),
    Measure("first_visible", "share", "The weight on the first key: an attention sink, where it is high."),
    Measure("learned_sink", "share", "The weight on the learned sink, which is no token."),
    Measure("special", "share", "The weight on special tokens, such as [CLS] and [SEP]."),
    Measure("largest", "share", "The largest weight on another token of the text."),
)
OF_RECORDS = tuple(measure.name for measure in MEASURES[:5])
