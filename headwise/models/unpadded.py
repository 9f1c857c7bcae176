"""Runs a BERT on texts of different lengths in one pass without padding: concatenated, each a separate document.

Linear layers then process only real tokens, and attention stays within each document. For inference on the CPU the
native kernels do all of it (`packed_encoder`), otherwise the modules do, with `masks.documents`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise import masks
from headwise.errors import ArgumentError
from headwise.models.bert_encoder import BertEncoder
from headwise.models.ids import check_ids
from headwise.models.packed_encoder import hidden_states
from headwise.native.linear import Dtype

TOKENS = 8192  # the maximum number of tokens in a pass
RELATIVE_TOKENS = 1024  # the same for a model with a relative bias, whose size is the square of this number


def read(
    bert: BertEncoder,
    ids: Sequence[Sequence[int]],
    types: Sequence[Sequence[int]] | None = None,
    *,
    dtype: Dtype | None = None,
    tokens: int = TOKENS,
) -> list[Tensor]:
    """Compute the last hidden states of each text: a list of tensors [S, M], where S is the text's own length.

    Args:
        bert: a Bert on the CPU, in eval mode.
        ids: a list of token ids for each text; at least one text.
        types: for each token, which text of a pair it is from, 0 or 1; None = all 0.
        tokens: the maximum number of tokens in one pass, except for a single longer text.
        dtype: the dtype of the matrix products: "float32", "bfloat16" or "int8" (weights with a scale per output,
            activations with a scale per token). None = the dtype of the parameters. If the model is hooked, watched or
            edited, its modules run, in their own dtype.

    Raises:
        ArgumentError: an id that has no embedding; a dtype that is not supported for this model.
    """
    encoder = bert.encoder(dtype)
    own = bert.embeddings.word.weight.dtype
    if encoder is None and dtype is not None and getattr(torch, dtype) != own:
        raise ArgumentError(
            f"dtype: expected that of the parameters, {own}, because the modules themselves must run: the layers are "
            f"not those of BERT, something looks into them, or there are no native kernels. Received: dtype={dtype!r}"
        )
    found: list[Tensor] = [torch.empty(0)] * len(ids)
    most = min(tokens, RELATIVE_TOKENS) if bert.config.relative_buckets else tokens
    by_length = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    for some in passes([len(ids[place]) for place in by_length], most):
        places = [by_length[each] for each in some]
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


def passes(lengths: Sequence[int], tokens: int = TOKENS) -> Iterator[list[int]]:
    """Yield the texts of each pass, as a list of indices: at most `tokens` tokens, or one longer text."""
    places: list[int] = []
    total = 0
    for place, length in enumerate(lengths):
        if places and total + length > tokens:
            yield places
            places, total = [], 0
        places.append(place)
        total += lengths[place]
    if places:
        yield places


def _pass(bert: BertEncoder, ids_T: Tensor, types_T: Tensor | None, lengths: Sequence[int]) -> Tensor:
    """Run the modules on all texts of one pass: return the hidden states [T, M] of their T tokens."""
    if len(set(lengths)) == 1:  # no text would be padded
        shape = (len(lengths), lengths[0])
        return bert(ids_T.view(shape), None, None if types_T is None else types_T.view(shape)).flatten(0, 1)
    places_T = torch.cat([torch.arange(length) for length in lengths])
    documents_T = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    types_T = torch.zeros_like(ids_T) if types_T is None else types_T
    x_1TM = bert.embeddings(ids_T[None], types_T[None], places_T)
    return bert.through(x_1TM, masks.documents(documents_T), places_T)[0]
