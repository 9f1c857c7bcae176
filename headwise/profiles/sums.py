"""Holds the data of a profile for one layer: sums and counts over all queries so far, pairs of tokens, and examples."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headwise.profiles.bins import BINS, MEASURES, OFFSETS
from headwise.profiles.classes import CLASSES
from headwise.profiles.examples import TopExamples
from headwise.profiles.pairs import PairSketch

_MEASURES, _OFFSETS, _CLASSES = len(MEASURES), len(OFFSETS), len(CLASSES)


@dataclass
class LayerSums:
    """The sums over all queries so far, for the H heads of a layer. Their size depends on H, not on the corpus.

    Queries are the tokens of the text: special tokens and padding are not counted as queries, but may be attended to.
    """

    name: str  # the path of the module
    heads: int
    kept: int  # number of examples for each head
    numbers: dict[str, Tensor] = field(default_factory=dict)  # see `FIELDS`
    pairs: PairSketch = None  # type: ignore[assignment]
    examples: list[TopExamples] = field(default_factory=list)  # [H]

    def __post_init__(self) -> None:
        for name, (shape, dtype) in FIELDS.items():
            sizes = [self.heads if size == "H" else size for size in shape]
            self.numbers.setdefault(name, torch.zeros(sizes, dtype=dtype))  # type: ignore[arg-type]
        self.pairs = self.pairs or PairSketch(self.heads)
        self.examples = self.examples or [TopExamples(self.kept) for _ in range(self.heads)]

    def add(self, name: str, x: Tensor, heads: slice | None = None) -> None:
        """Add `x` to the sums with this name, for all heads or for the slice `heads` of them."""
        target = self.numbers[name] if heads is None else self.numbers[name][heads]
        target += x.detach().cpu().to(target.dtype)

    def merge(self, other: LayerSums) -> None:
        """Add the sums of `other`: the same layer, over other queries."""
        for name, x in other.numbers.items():
            self.add(name, x)
        self.pairs.merge(other.pairs)
        for kept, found in zip(self.examples, other.examples, strict=True):
            for example in found.examples:
                kept.add(example)


_COUNT, _SUM = torch.int64, torch.float64

#: name -> (shape, dtype). H = heads.
FIELDS: dict[str, tuple[tuple[int | str, ...], torch.dtype]] = {
    "rows": ((), _COUNT),  # number of queries
    "visible": ((), _SUM),  # Σ log of the number of keys that a query may see: the largest entropy
    "histograms": (("H", _MEASURES, BINS), _COUNT),
    "means": (("H", _MEASURES), _SUM),
    "offsets": (("H", _OFFSETS), _SUM),  # weight on tokens of the text by relative position, key - query
    "classes": (("H", _CLASSES, _CLASSES), _SUM),  # weight by class of query and of key
    "class_rows": ((_CLASSES,), _COUNT),  # queries of each class
    "even": ((_CLASSES, _CLASSES), _SUM),  # the same weight, if attention were spread evenly over the visible keys
    "previous": (("H",), _SUM),  # weight on the token before, special or not, of all queries …
    "previous_rows": (("H",), _COUNT),  # … that may see one
    "same": (("H",), _SUM),  # weight on the same token at other positions …
    "same_text": (("H",), _SUM),  # … and on all of the text, of the queries that have some
    "same_rows": ((), _COUNT),
    "duplicate": (("H",), _SUM),  # weight on the same token before
    "duplicate_rows": ((), _COUNT),
    "induction": (("H",), _SUM),  # weight on the token that followed the same token before
    "induction_rows": ((), _COUNT),
    "induction_even": ((), _SUM),  # the same weight, if attention were even
}
