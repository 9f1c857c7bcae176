"""Examples that are typical of a head: the queries with the most surprising weight, in a list of bounded size."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from headwise.text import Tokens

KEPT = 8  #: the number of examples for each head


@dataclass(frozen=True)
class Window:
    """A part of a text that the model read in one pass."""

    text: int  # the number of the text in the corpus, from 0
    start: int  # the first character of the window in that text
    tokens: Tokens


@dataclass(frozen=True)
class Example:
    """One query of a window, and the weights with which the head attends from it.

    `score` is A log(A n), in nats: A is the query's largest weight on another token of the text, n the number of keys
    that it may see. It is the part of A in the divergence of the query's weights from even attention.
    """

    window: Window
    query: int
    key: int  # the token of the text, other than the query, with the largest weight
    score: float
    weights: tuple[float, ...]  # the row, one for each token of the window, rounded to 4 decimals

    @property
    def pair(self) -> tuple[int, int]:
        """The ids of the query token and of the key token."""
        ids = self.window.tokens.ids
        return ids[self.query], ids[self.key]

    @property
    def order(self) -> tuple[float, int, int]:
        """The sort key: the highest score first, then the earliest text."""
        return -self.score, self.window.text, self.window.start


@dataclass
class TopExamples:
    """The `kept` best examples of one head, each with another pair of tokens, so that a list shows more than one habit.

    The list does not depend on the order of `add`: for a dropped example, `kept` better examples of other pairs exist.
    """

    kept: int = KEPT
    examples: list[Example] = field(default_factory=list)  # the best first

    def least(self) -> float:
        """The score that an example must reach to be kept."""
        return self.examples[-1].score if len(self.examples) >= self.kept else 0.0

    def add(self, example: Example) -> None:
        """Keep the example if it is among the best examples."""
        for place, other in enumerate(self.examples):
            if other.pair == example.pair:
                if other.order <= example.order:
                    return
                del self.examples[place]
                break
        bisect.insort(self.examples, example, key=lambda each: each.order)
        del self.examples[self.kept :]


def distinct(lists: Sequence[TopExamples]) -> list[Window]:
    """The windows of all examples in these lists, each once."""
    found: dict[tuple[int, int], Window] = {}
    for each in lists:
        for example in each.examples:
            found.setdefault((example.window.text, example.window.start), example.window)
    return list(found.values())
