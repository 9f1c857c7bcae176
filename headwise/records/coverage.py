"""What was seen of a model, and what was not: one line for every place that computes attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CallSite:
    """One place in a model's code that computes attention, or looks as if it did."""

    name: str  # the path of its module
    status: Literal["seen", "missed", "refused"]
    calls: int  # how many computations were made there
    how: str  # what was recognised ("scaled_dot_product_attention"), or the reason why nothing is shown


@dataclass(frozen=True)
class Coverage:
    """Every call site, in the order of the computation; `notes` say what the watch changed in how the model ran."""

    sites: tuple[CallSite, ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[CallSite]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)
