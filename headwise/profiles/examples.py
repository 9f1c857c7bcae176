"""Keeps typical examples of each head: queries with a far larger weight than even attention has, a few per head."""

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
    that the query may see. This is the term of A in the divergence of the query's weights from even attention.
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
    """The at most `kept` examples of one head with the highest scores, each with another pair of query and key token.

    The list does not depend on the order of `add`: an example is dropped only for a better one of its pair, or for
    `kept` better ones of other pairs.
    """

    kept: int = KEPT
    examples: list[Example] = field(default_factory=list)  # the best first

    def least(self) -> float:
        """Return the score that a new example must reach to enter the list; 0 while the list is not full."""
        return self.examples[-1].score if len(self.examples) >= self.kept else 0.0

    def add(self, example: Example) -> None:
        """Add the example to the list if it is among the `kept` best, and drop the example that it displaces."""
        for place, other in enumerate(self.examples):
            if other.pair == example.pair:
                if other.order <= example.order:
                    return
                del self.examples[place]
                break
        bisect.insort(self.examples, example, key=lambda each: each.order)
        del self.examples[self.kept :]


def distinct(lists: Sequence[TopExamples]) -> list[Window]:
    """Return the windows of all examples in these lists; a window that several examples share comes only once."""
    found: dict[tuple[int, int], Window] = {}
    for each in lists:
        for example in each.examples:
            found.setdefault((example.window.text, example.window.start), example.window)
    return list(found.values())
