"""`Writing`: a model and a search take turns. All code that writes texts uses it, for one text or many side by side.

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
    """A model that reads one more token in each hypothesis of each text, in each pass."""

    def join(self, sources: Sequence[Sequence[int]]) -> Tensor:
        """Append texts that begin. After an error none of them has joined.

        Returns:
            The first token that each new text reads, int64 [new].
        """

    def __call__(self, ids_Nw: Tensor) -> Tensor:
        """The logits [N, w, V] of the next tokens, after the tokens `ids` [N, w]."""

    def follow(self, parents_Nw: Tensor) -> None:
        """Let hypothesis j of each text continue from the text's hypothesis parents[j]."""

    def keep(self, order: Sequence[int]) -> None:
        """Let text i become the old text order[i]; texts that are not in `order` leave."""


class Writing:
    """Texts that are being written; each has a number, counted from 0.

    Args:
        run: a `Pass` that has no texts yet.
        search: a search that has no texts yet.
    """

    def __init__(self, run: Pass, search: Choosing | Searching) -> None:
        self._pass, self._search = run, search
        self._ids = torch.zeros(0, search.width, dtype=torch.int64, device=search.lengths.device)

    def __len__(self) -> int:
        """N, the number of texts."""
        return len(self._search)

    def join(self, asked: Sequence[Asked]) -> None:
        """Append texts that begin. After an error none of them has joined."""
        first = self._pass.join([each.source for each in asked])
        self._search.join(asked)
        self._ids = torch.cat([self._ids, first[:, None].expand(-1, self._search.width)])

    def step(self) -> dict[int, Written | ArgumentError]:
        """Write one more token in each text. Returns the ended texts, which keep their numbers until they `leave`."""
        chosen = self._search.choose(self._pass(self._ids))
        if chosen.parents is not None and len(chosen.ended) < len(self):
            self._pass.follow(chosen.parents)
        self._ids = chosen.ids
        return chosen.ended

    def certain(self, text: int) -> list[int]:
        """The first tokens of a text that are certain, whatever follows."""
        return self._search.certain(text)

    def leave(self, leaving: Collection[int]) -> Sequence[int]:
        """Remove texts. Returns the former numbers of the remaining texts, in their new order; few numbers change."""
        order = _closed(len(self), leaving)
        if leaving:
            self._pass.keep(order)
            self._search.keep(order)
            self._ids = self._ids[order]
        return order


@torch.no_grad()
def written(writing: Writing) -> list[Written]:
    """Write all texts of a `Writing` to their ends, and return them. Raises ArgumentError if a text failed."""
    places: Sequence[int] = range(len(writing))
    found: dict[int, Written] = {}
    while len(writing):
        ended = writing.step()
        found.update((places[i], _sound(each)) for i, each in ended.items())
        places = [places[i] for i in writing.leave(ended)]
    return [found[i] for i in sorted(found)]


@torch.no_grad()
def followed(writing: Writing) -> Iterator[list[int]]:
    """Yield the certain part of the only text of a `Writing` after each step; at last the whole text."""
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
    """A `Pass` that uses `Steps`, for texts that all begin together. Any runtime can compute the steps.

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
        self._rows = torch.zeros(0, 1, dtype=torch.int64, device=device)  # of the steps: the past of each hypothesis
        self._is_other = self._are_same_sources = False  # whether these differ from the steps' rows; of the same texts

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
    """The numbers of the texts that stay, in an order in which few change: the last texts fill the gaps."""
    stay = count - len(leaving)
    order = list(range(stay))
    last = (i for i in range(stay, count) if i not in leaving)
    for gap in sorted(i for i in leaving if i < stay):
        order[gap] = next(last)
    return order
