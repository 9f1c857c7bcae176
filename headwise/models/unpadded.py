"""A BERT reads texts of different lengths in one pass without padding: concatenated, each as a separate document.

Linear layers then process real tokens only, and attention stays within each document (`masks.documents`). On 32 texts
of 5 to 60 words this saves a third of the work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headwise import masks

if TYPE_CHECKING:  # a Bert encodes texts by this
    from headwise.models.bert import Bert

TOKENS = 4096  # per pass


def read(
    bert: Bert,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None = None,
    *,
    tokens: int = TOKENS,
) -> list[Tensor]:
    """The last hidden states of each text [S, M], S its own length.

    Args:
        bert: on the CPU, in eval mode.
        ids: the token ids of each text, at least one.
        types: which text of a pair each token belongs to; None = all to the first.
        tokens: at most so many in one pass, or one text that is longer.
    """
    found: list[Tensor] = [torch.empty(0)] * len(ids)
    for places in passes([len(each) for each in ids], tokens):
        lengths = [len(ids[place]) for place in places]
        hidden_TM = _pass(
            bert,
            torch.tensor([id_ for place in places for id_ in ids[place]]),
            None if types is None else torch.tensor([type_ for place in places for type_ in types[place]]),
            lengths,
        )
        for place, hidden_SM in zip(places, hidden_TM.split(lengths), strict=True):
            found[place] = hidden_SM
    return found


def passes(lengths: Sequence[int], tokens: int = TOKENS) -> Iterator[list[int]]:
    """The indices of the texts that share a pass of at most so many tokens."""
    places: list[int] = []
    total = 0
    for place, length in enumerate(lengths):
        if places and total + length > tokens:
            yield places
            places, total = [], 0
        places.append(place)
        total += length
    if places:
        yield places


def _pass(bert: Bert, ids_T: Tensor, types_T: Tensor | None, lengths: Sequence[int]) -> Tensor:
    """[T, M], the hidden states of the tokens of all texts."""
    if len(set(lengths)) == 1:  # nothing would be padded
        shape = (len(lengths), lengths[0])
        return bert(ids_T.view(shape), None, None if types_T is None else types_T.view(shape)).flatten(0, 1)
    places_T = torch.cat([torch.arange(length) for length in lengths])
    documents_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    types_T = torch.zeros_like(ids_T) if types_T is None else types_T
    return bert.through(bert.embeddings(ids_T[None], types_T[None], places_T), masks.documents(documents_T))[0]
