"""`Writing`: a model and a search take turns. Every way of writing texts goes through it, one by one or side by side.

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
    """A model that reads one more token in each hypothesis of each text."""

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Texts that begin, behind those that are there. After an error none of them has joined.

        Returns:
            The first token to read in each, int64 [new].
        """

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        """Logits [N, w, V] of what follows after these tokens."""

    def follow(self, parents_Nw: Tensor) -> None:
        """Hypothesis j of a text goes on from what its hypothesis parents[j] has read."""

    def keep(self, order: Sequence[int]) -> None:
        """Text i becomes what text order[i] was; the others leave."""


class Writing:
    """Texts on their way, by their places from 0 on.

    Args:
        run: a pass without texts.
        search: one without texts.
    """

    def __init__(self, run: Pass, search: Choosing | Searching) -> None:
        self._pass, self._search = run, search
        self._ids = torch.zeros(0, search.width, dtype=torch.int64, device=search.lengths.device)

    def __len__(self) -> int:
        """N"""
        return len(self._search)

    def join(self, asked: Sequence[Asked]) -> None:
        """Texts that begin, behind those that are there. After an error none of them has joined."""
        first = self._pass.join([each.source for each in asked])
        self._search.join(asked)
        self._ids = torch.cat([self._ids, first[:, None].expand(-1, self._search.width)])

    def step(self) -> dict[int, Written | ArgumentError]:
        """One more token in each text. Returns those that have ended, which keep their places until they `leave`."""
        chosen = self._search.choose(self._pass(self._ids))
        if chosen.parents is not None and len(chosen.ended) < len(self):
            self._pass.follow(chosen.parents)
        self._ids = chosen.ids
        return chosen.ended

    def certain(self, text: int) -> list[int]:
        """The tokens that a text begins with, whatever follows."""
        return self._search.certain(text)

    def leave(self, leaving: Collection[int]) -> Sequence[int]:
        """Texts leave. Returns the former places of those that stay: few of them change."""
        order = _closed(len(self), leaving)
        if leaving:
            self._pass.keep(order)
            self._search.keep(order)
            self._ids = self._ids[order]
        return order


@torch.no_grad()
def written(writing: Writing) -> list[Written]:
    """What is written for each text of a `Writing`, to the end of all. Raises ArgumentError for one that failed."""
    places: Sequence[int] = range(len(writing))
    found: dict[int, Written] = {}
    while len(writing):
        ended = writing.step()
        found.update((places[i], _sound(each)) for i, each in ended.items())
        places = [places[i] for i in writing.leave(ended)]
    return [found[i] for i in sorted(found)]


@torch.no_grad()
def followed(writing: Writing) -> Iterator[list[int]]:
    """What is certain of the only text of a `Writing`, after each step; the last time whole."""
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
    """`Pass` of `Steps`: texts that begin together, once. Any runtime can compute them.

    Args:
        begin: makes the steps for the sources.
        decoding: its beams and the sign that begins a text.
    """

    def __init__(
        self, begin: Callable[[Sequence[Sequence[int]]], Steps], decoding: Decoding, device: torch.device
    ) -> None:
        self._begin, self._width = begin, decoding.beams
        self._first = torch.tensor(decoding.begin, device=device)
        self._steps: Steps | None = None
        self._rows = torch.zeros(0, 1, dtype=torch.int64, device=device)  # of the steps: whose past each hypothesis has
        self._is_other = self._are_same_sources = False  # whether those are not the steps' own rows; of the same texts

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        assert self._steps is None
        self._steps = self._begin(sources)
        self._rows = torch.arange(len(sources), device=self._first.device)[:, None]
        return self._first.expand(len(sources))

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        assert self._steps is not None
        if self._is_other:
            self._steps.reorder(self._rows.flatten(), same_sources=self._are_same_sources)
        texts, width = self._rows.shape  # at first the hypotheses of a text are one
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
    """Those that stay, in such an order that few change their place: the last ones close the gaps."""
    stay = count - len(leaving)
    order = list(range(stay))
    last = (i for i in range(stay, count) if i not in leaving)
    for gap in sorted(i for i in leaving if i < stay):
        order[gap] = next(last)
    return order
