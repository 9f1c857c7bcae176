"""`Writing`: generation of texts, in which a model and a search take turns. All code that generates texts uses it.

Dimension letters: N texts, w hypotheses of each, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.tasks.text.searches import Asked, Choosing, Searching
from headwise.tasks.text.steps import Decoding, Steps, Written


class Pass(Protocol):
    """A model that reads, at each call, one more token in each hypothesis (beam) of each text."""

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Append new texts. After an error none of them has joined.

        Returns:
            The first token that each new text reads, int64 [new].
        """

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        """Read the tokens `ids` [N, w]. Returns the logits [N, w, V] of the next tokens."""

    def follow(self, parents_Nw: Tensor) -> None:
        """Let hypothesis j of each text continue from hypothesis parents[j] of the same text."""

    def keep(self, order: Sequence[int]) -> None:
        """Move the old text order[i] to index i. Texts that are not in `order` leave."""


class Writing:
    """Texts that are being generated. Each has a number (its index), counted from 0.

    Args:
        run: a `Pass` that has no texts yet.
        search: a search that has no texts yet.
    """

    def __init__(self, run: Pass, search: Choosing | Searching) -> None:
        self._pass, self._search = run, search
        self._ids = torch.zeros(0, search.width, dtype=torch.int64, device=search.lengths.device)

    def __len__(self) -> int:
        """Return N, the number of texts."""
        return len(self._search)

    def join(self, asked: Sequence[Asked]) -> None:
        """Append new texts. After an error none of them has joined."""
        first = self._pass.join([each.source for each in asked])
        self._search.join(asked)
        self._ids = torch.cat([self._ids, first[:, None].expand(-1, self._search.width)])

    def step(self) -> dict[int, Written | ArgumentError]:
        """Generate one more token in each text. Returns the ended texts; they keep their numbers until they `leave`."""
        chosen = self._search.choose(self._pass(self._ids))
        if chosen.parents is not None and len(chosen.ended) < len(self):
            self._pass.follow(chosen.parents)
        self._ids = chosen.ids
        return chosen.ended

    def certain(self, text: int) -> list[int]:
        """Return the first tokens of a text that later steps cannot change."""
        return self._search.certain(text)

    def leave(self, leaving: Collection[int]) -> Sequence[int]:
        """Remove texts. Returns the old numbers of the texts that stay, in their new order; few numbers change."""
        order = _closed(len(self), leaving)
        if leaving:
            self._pass.keep(order)
            self._search.keep(order)
            self._ids = self._ids[order]
        return order


@torch.no_grad()
def written(writing: Writing) -> list[Written]:
    """Generate all texts of a `Writing` to their ends, and return them. Raises ArgumentError if a text failed."""
    places: Sequence[int] = range(len(writing))
    found: dict[int, Written] = {}
    while len(writing):
        ended = writing.step()
        found.update((places[i], _sound(each)) for i, each in ended.items())
        places = [places[i] for i in writing.leave(ended)]
    return [found[i] for i in sorted(found)]


@torch.no_grad()
def followed(writing: Writing) -> Iterator[list[int]]:
    """Yield after each step the final part of the only text of a `Writing`; at last the whole text."""
    while True:
        ended = writing.step()
        yield writing.certain(0)
        if ended:
            break
    yield _sound(ended[0]).ids


def _sound(found: Written | ArgumentError) -> Written:
    if isinstance(found, ArgumentError):
        raise found
    return found


class Stepped:
    """A `Pass` made of `Steps`, which any runtime can compute, for texts that all begin together.

    Args:
        begin: makes the steps for the sources.
        decoding: has the number of beams, and the sign that begins a text.
    """

    def __init__(
        self, begin: Callable[[Sequence[Sequence[int]]], Steps], decoding: Decoding, device: torch.device
    ) -> None:
        self._begin, self._width = begin, decoding.beams
        self._first = torch.tensor(decoding.begin, device=device)
        self._steps: Steps | None = None
        self._rows = torch.zeros(0, 1, dtype=torch.int64, device=device)  # the row of the steps of each hypothesis
        self._is_other = self._are_same_sources = False  # do these rows differ from the steps' rows; are texts the same

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        assert self._steps is None
        self._steps = self._begin(sources)
        self._rows = torch.arange(len(sources), device=self._first.device)[:, None]
        return self._first.expand(len(sources))

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        assert self._steps is not None
        if self._is_other:
            self._steps.reorder(self._rows.flatten(), same_sources=self._are_same_sources)
        texts, width = self._rows.shape  # at first the hypotheses of a text are equal
        logits_NwV = self._steps(ids_Nw[:, :width].flatten()).unflatten(0, (texts, width))
        self._rows = torch.arange(texts * width, device=ids_Nw.device).view(texts, width).expand(-1, self._width)
        self._is_other, self._are_same_sources = width < self._width, width == self._width
        return logits_NwV.expand(-1, self._width, -1)

    def follow(self, parents_Nw: Tensor) -> None:
        self._rows, self._is_other = self._rows.gather(1, parents_Nw), True

    def keep(self, order: Sequence[int]) -> None:
        self._rows = self._rows[list(order)]
        self._is_other, self._are_same_sources = True, False


def _closed(count: int, leaving: Collection[int]) -> Sequence[int]:
    """Return the numbers of the texts that stay, in an order in which few change: the last texts fill the gaps."""
    stay = count - len(leaving)
    order = list(range(stay))
    last = (i for i in range(stay, count) if i not in leaving)
    for gap in sorted(i for i in leaving if i < stay):
        order[gap] = next(last)
    return order
