"""A profile: statistics of every head of a model over a whole corpus."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from headwise.analyses.patterns import LEAST
from headwise.errors import ArgumentError
from headwise.profiles.bins import MEASURES, OFFSETS
from headwise.profiles.classes import CLASSES, PUNCTUATION, SEPARATOR, START
from headwise.profiles.examples import Example
from headwise.profiles.kinds import choose_kind
from headwise.profiles.measuring import SPREAD
from headwise.profiles.saving import save
from headwise.profiles.sums import LayerSums

DEFAULT_MODEL = "MiniLM"  #: the name of the model that commands use without --model


@dataclass(frozen=True)
class Pair:
    """Two tokens, and the summed weight of the first (the query) on the second (the key).

    Each query counts for one pair only: with the other token of the text on which its weight is largest. The true
    weight lies between `weight` and `weight + error`.
    """

    query: str
    key: str
    weight: float
    error: float


@dataclass(frozen=True)
class Head:
    """The statistics of one head. Shares and means are over the queries: all tokens of texts that are not special."""

    layer: int  # the index of its layer in the profile, from 0
    head: int
    sums: LayerSums = field(repr=False)
    names: dict[int, str] = field(repr=False)
    block: dict[str, float] = field(repr=False)

    @property
    def rows(self) -> int:
        """The number of queries."""
        return int(self.sums.numbers["rows"])

    def _mean(self, x: Tensor, rows: str = "rows") -> list[float]:
        return (x.double() / max(1, int(self.sums.numbers[rows]))).tolist()

    @functools.cached_property
    def means(self) -> dict[str, float]:
        """The mean over the queries of each measure of `headwise.profiles.MEASURES`, by name."""
        found = self._mean(self.sums.numbers["means"][self.head])
        return {each.name: mean for each, mean in zip(MEASURES, found, strict=True)}

    def histogram(self, name: str) -> list[int]:
        """Return how many queries have a value of this measure in each bin; `profile.edges(name)` has the bins."""
        place = [each.name for each in MEASURES].index(name)
        return self.sums.numbers["histograms"][self.head, place].tolist()

    @functools.cached_property
    def offsets(self) -> dict[str, float]:
        """The mean weight on each relative position (key - query), by name: "-1" is the previous token of the text."""
        return dict(zip(OFFSETS, self._mean(self.sums.numbers["offsets"][self.head]), strict=True))

    @functools.cached_property
    def classes(self) -> dict[str, float]:
        """The mean weight of a query on the tokens of each class, by the name of the class."""
        return dict(zip(CLASSES, self._mean(self.sums.numbers["classes"][self.head].sum(0)), strict=True))

    @functools.cached_property
    def even_classes(self) -> dict[str, float]:
        """The weights that `classes` would have if attention were spread evenly over the keys that a query may see."""
        return dict(zip(CLASSES, self._mean(self.sums.numbers["even"].sum(0)), strict=True))

    def classes_from(self, query: str) -> dict[str, float]:
        """Return the mean weight on the tokens of each class, over the queries of one class, `query`."""
        place = CLASSES.index(query)
        rows = max(1, int(self.sums.numbers["class_rows"][place]))
        weights = (self.sums.numbers["classes"][self.head, place] / rows).tolist()
        return dict(zip(CLASSES, weights, strict=True))

    @functools.cached_property
    def patterns(self) -> dict[str, float]:
        """The score of each pattern, 0 to 1, over the corpus, and on a repeated random block if the model can read it.

        previous_token  mean weight on the previous token, over all queries that may see one; NaN in files of 0.2
        duplicate_token mean weight on earlier copies of the token, over the queries that have some
        induction       mean weight on the tokens after earlier copies, over the queries that have some
        block_…         the same on the repeated block, by `headwise.analyses.pattern_scores`
        """
        numbers, h = self.sums.numbers, self.head
        return {
            "previous_token": float(numbers["previous"][h]) / (self.supports["previous_token"] or math.nan),
            "duplicate_token": float(self._mean(numbers["duplicate"][h], "duplicate_rows")),  # type: ignore[arg-type]
            "induction": float(self._mean(numbers["induction"][h], "induction_rows")),  # type: ignore[arg-type]
            **self.block,
        }

    @property
    def supports(self) -> dict[str, int]:
        """The number of queries behind each of `patterns` that is of the corpus."""
        numbers, h = self.sums.numbers, self.head
        rows = {"previous_token": numbers["previous_rows"][h], "duplicate_token": numbers["duplicate_rows"]}
        return {name: int(x) for name, x in {**rows, "induction": numbers["induction_rows"]}.items()}

    @functools.cached_property
    def relative_entropy(self) -> float:
        """The mean entropy, divided by the mean of the largest possible one: 1 = even attention to all visible keys."""
        most = float(self.sums.numbers["visible"]) / max(1, self.rows)
        return self.means["entropy"] / most if most > 0 else 0.0

    @functools.cached_property
    def kind(self) -> tuple[str, float]:
        """The kind of the head, a name in `headwise.profiles.kinds.KINDS`, and the number that decided it."""
        numbers, h = self.sums.numbers, self.head
        text = max(1e-12, sum(self.offsets.values()))
        near = sum(self.offsets[f"{d:+d}"] for d in range(-3, 4) if d)
        even, previous, repeats = self.even_classes, self.patterns["previous_token"], self.supports["induction"]
        shares = {
            "previous token": self.offsets["-1"] / text if math.isnan(previous) else previous,
            "next token": self.offsets["+1"] / text,
            "itself": self.offsets["0"] / text,
            "same token": float(numbers["same"][h]) / max(1e-12, float(numbers["same_text"][h])),
            "induction": self.patterns["induction"] if repeats >= LEAST else 0.0,
            "punctuation": self.classes[CLASSES[PUNCTUATION]] / text,
            "neighbours": near / text,
        }
        even_text = max(1e-12, sum(even.values()) - even[CLASSES[START]] - even[CLASSES[SEPARATOR]])
        by_chance = {
            "punctuation": even[CLASSES[PUNCTUATION]] / even_text,
            "induction": float(numbers["induction_even"]) / repeats if repeats else math.nan,
        }
        return choose_kind(shares, by_chance, self.means["special"], self.relative_entropy)

    def pairs(self, count: int = 20) -> list[Pair]:
        """Return the `count` pairs of tokens with the most weight, the highest first."""
        error = float(self.sums.pairs.error[self.head])
        names = self.names
        return [
            Pair(names.get(code // SPREAD, "?"), names.get(code % SPREAD, "?"), weight, error)
            for code, weight in self.sums.pairs.strongest(self.head, count)
        ]

    @property
    def examples(self) -> list[Example]:
        """The examples that are most typical of the head, the best first."""
        return self.sums.examples[self.head].examples


@dataclass
class Profile:
    """The statistics of every head over a corpus: `profile.heads()`, or `profile[layer, head]`.

    `headwise.profiles.profile(...)` makes one, `save` and `headwise.profiles.load` write and read it.
    """

    model: str  # its name
    corpus: str  # its name
    options: dict[str, Any]  # the options that a resumed run must share: length, batch, kept, layers, …
    layers: list[LayerSums] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)  # id -> label, for pairs
    block: dict[str, Any] = field(default_factory=dict)  # scores on a repeated random block: name -> [[…]] [L, H]
    texts: int = 0
    windows: int = 0
    tokens: int = 0  # special tokens included
    complete: bool = False
    model_digest: str = ""
    corpus_digest: str = ""  # the digest of the texts that were read
    run_digest: str = ""  # the digest of the whole model with its tokenizer, which a resumed run must share

    def heads(self) -> Iterator[Head]:
        """Yield every head, layer by layer."""
        for layer, sums in enumerate(self.layers):
            for head in range(sums.heads):
                yield self[layer, head]

    def __getitem__(self, place: tuple[int, int]) -> Head:
        """Return the head at (layer, head), both from 0. Raises ArgumentError if there is no such head."""
        layer, head = place
        if not (0 <= layer < len(self.layers) and 0 <= head < self.layers[layer].heads):
            counts = [each.heads for each in self.layers]
            raise ArgumentError(
                f"profile[layer, head]: expected a head of {len(counts)} layers with {counts} heads. "
                f"Received: profile[{layer}, {head}]"
            )
        block = {name: float(rows[layer][head]) for name, rows in self.block.items()}
        return Head(layer, head, self.layers[layer], self.names, block)

    def edges(self, name: str) -> list[float]:
        """Return the edges of the bins of a measure's histogram: one edge more than there are bins."""
        measure = next(each for each in MEASURES if each.name == name)
        return measure.edges(self.options["length"])

    def save(self, path: str | Path) -> None:
        """Write the profile to a file for `headwise.profiles.load` and `headwise view`. FileError if this fails."""
        save(Path(path), self.layers, self.names, {name: getattr(self, name) for name in FACTS})

    def __repr__(self) -> str:
        heads = sum(each.heads for each in self.layers)
        state = "" if self.complete else ", not complete"
        return f"Profile({self.model}, {heads} heads, {self.texts:,} texts, {self.tokens:,} tokens{state})"


#: The fields that are plain values (numbers, strings, dictionaries): a file has them as JSON.
FACTS = tuple(each.name for each in fields(Profile) if each.name not in ("layers", "names"))
