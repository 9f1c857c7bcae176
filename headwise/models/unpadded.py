"""A BERT reads texts of different lengths in one pass without padding: concatenated, each as a separate document.

Linear layers then process real tokens only, and attention stays within each document. In inference on the CPU all of it
is done by the native kernels (`packed_encoder`), else by the modules, with `masks.documents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise import masks
from headwise.models.bert import Bert, check_ids
from headwise.models.packed_encoder import hidden_states
from headwise.native.linear import Dtype

TOKENS = 8192  # per pass


def read(
    bert: Bert,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None = None,
    *,
    dtype: Dtype | None = None,
    tokens: int | None = None,
) -> list[Tensor]:
    """The last hidden states of each text [S, M], S its own length.

    Args:
        bert: on the CPU, in eval mode.
        ids: the token ids of each text, at least one.
        types: which text of a pair each token belongs to; None = all to the first.
        dtype: of the products: "float32", "bfloat16" or "int8" (weights by output, activations by token). None = that
            of the parameters. Where the model is hooked, watched, edited or trained, its modules run, in their own.
        tokens: per pass; None = 8192.

    Raises:
        ArgumentError: an id that has no embedding.
    """
    encoder = bert.encoder(dtype)
    found: list[Tensor] = [torch.empty(0)] * len(ids)
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    for places in _passes(order, [len(each) for each in ids], TOKENS if tokens is None else tokens):
        lengths = [len(ids[place]) for place in places]
        ids_T = torch.tensor([id_ for place in places for id_ in ids[place]], dtype=torch.int64)
        types_T = None if types is None else torch.tensor([type_ for place in places for type_ in types[place]])
        if encoder is not None:
            check_ids("ids", ids_T[None], bert.config.vocab_size)
            hidden_TM = hidden_states(bert, encoder, ids_T, types_T, torch.tensor(lengths))
        else:
            hidden_TM = _pass(bert, ids_T, types_T, lengths)
        for place, hidden_SM in zip(places, hidden_TM.split(lengths), strict=True):
            found[place] = hidden_SM
    return found


def _passes(order: Sequence[int], lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The indices of the texts that share a pass, in this order."""
    places: list[int] = []
    total = 0
    for place in order:
        if places and total + lengths[place] > tokens:
            yield places
            places, total = [], 0
        places.append(place)
        total += lengths[place]
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
