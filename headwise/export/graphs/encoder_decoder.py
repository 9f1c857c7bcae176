"""The graphs of an encoder-decoder: "encoder", called once, and "decoder", called for each new token.

The encoder also computes the cross-attention keys and values of every decoder layer, once, so that a decoder step costs
only one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.export.graph import Graph, Value
from headwise.export.graphs.past import Past, pairs, values_of
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.nn import DecoderLayer, MultiHeadAttention
from headwise.tasks.text.padding import padded
from headwise.tasks.text_to_text import TextToText

TEXTS = 4  # most texts used as examples
SOURCE_IDS = Value("source_ids", torch.int64, ("batch", "source"))
SOURCE_REAL = Value("source_real", torch.bool, ("batch", "source"))  # True = a real token


@torch.no_grad()
def graphs(task: TextToText[Any], texts: Sequence[str] = ()) -> tuple[Graph, ...]:
    """The two graphs.

        encoder: source_ids, source_real → cross_keys_0, cross_values_0 … of each layer; memory if the model copies
        decoder: target_ids, source_real, [source_ids, memory,] past_keys_0, past_values_0 …, cross_keys_0 …
                 → logits, keys_0, values_0 …

    The decoder reads [batch, length] tokens after the tokens of the past. At first the past has no tokens; the returned
    keys and values are the past of the next step. A model that copies returns log-probabilities as logits.

    Args:
        task: trained, on the CPU.
        texts: real sources for the examples. Random ids are used as well.
    """
    model = task.model.eval()
    encoder, decoder = EncoderGraph(model), DecoderGraph(model)
    sources = _sources(task, texts)
    copied = (SOURCE_IDS, Value("memory", torch.float32, ("batch", "source", model.config.dim)))[: 2 * encoder.copies]
    layers, heads, width = _sizes(model)
    cross = values_of("cross_", layers, heads, "source", width)
    return (
        Graph("encoder", encoder, (SOURCE_IDS, SOURCE_REAL), (*cross, *copied[1:]), sources),
        Graph(
            "decoder",
            decoder,
            (
                Value("target_ids", torch.int64, ("batch", "length")),
                SOURCE_REAL,
                *copied,
                *values_of("past_", layers, heads, "past", width),
                *cross,
            ),
            (
                Value("logits", torch.float32, ("batch", "length", model.target_embedding.num_embeddings)),
                *values_of("", layers, heads, "present", width),
            ),
            _steps(encoder, decoder, sources, task.target_vocabulary.begin),
        ),
    )


class EncoderGraph(nn.Module):
    """Keys and values of the source for each decoder layer, and the memory itself if the model copies."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model
        self.copies = model.copy is not None

    def forward(self, source_ids: Tensor, source_real: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(source_ids, source_real)
        found: list[Tensor] = []
        for layer in self.model.decoder.layers:
            # Contiguous, because AOTInductor packages require it of the decoder's inputs.
            found += [x.contiguous() for x in _cross_attention(layer).project(memory, "kv")]
        return (*found, memory) if self.copies else tuple(found)


class DecoderGraph(nn.Module):
    """Logits of the next token, and the keys and values of all tokens so far."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, target_ids: Tensor, source_real: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        model = self.model
        if model.copy is not None:
            source_ids, memory, *given = given  # type: ignore[assignment]
        else:
            # Every layer has its keys and values already; only the shape of the memory is used.
            source_ids = memory = given[-1].new_zeros(
                (*source_real.shape, _cross_attention(model.decoder.layers[0]).kdim)
            )
        count = 2 * len(model.decoder.layers)
        past = Past(pairs(given[:count]), pairs(given[count:]))
        hidden = model.decode(target_ids, memory, source_real, past)
        return (model.logits(hidden, memory, source_ids, source_real), *past.present)


def _cross_attention(layer: nn.Module) -> MultiHeadAttention:
    attention = cast(DecoderLayer, layer).cross_attention
    assert isinstance(attention, MultiHeadAttention)
    return attention


def _sizes(model: EncoderDecoder) -> tuple[int, int, int]:
    """(decoder layers, heads, head dimension)."""
    heads = model.config.num_heads
    return model.config.decoder_layers, heads, model.config.dim // heads


def _sources(task: TextToText[Any], texts: Sequence[str]) -> list[tuple[Tensor, Tensor]]:
    """Batches of source ids and their padding: the real texts, random ids of several lengths, and a single row."""
    vocabulary = task.source_vocabulary
    longest = task.options.max_source_length
    real = vocabulary.encode(list(texts)[:TEXTS], longest, keep=task.keep)
    drawn = torch.Generator().manual_seed(0)
    most = min(9, longest)
    random = [torch.randint(len(vocabulary), (length,), generator=drawn).tolist() for length in (most, 3, most - 2)]
    batches = [real if len(real) > 1 else real * 2, random, random[:1]]
    return [_batch(rows, vocabulary.pad) for rows in batches if rows]


def _batch(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    ids = padded(rows, pad)
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


def _steps(
    encoder: EncoderGraph, decoder: DecoderGraph, sources: Sequence[tuple[Tensor, Tensor]], begin: int
) -> list[tuple[Tensor, ...]]:
    """For each batch of sources: a first step without a past, and a step of several tokens after previous ones."""
    found = []
    for source_ids, source_real in sources:
        *cross, last = encoder(source_ids, source_real)
        cross, copied = (cross, (source_ids, last)) if encoder.copies else ([*cross, last], ())
        past = [each[:, :, :0] for each in cross]
        ids = torch.full((len(source_ids), 1), begin)
        first = (ids, source_real, *copied, *past, *cross)
        written = [ids]
        for _ in range(4):
            logits, *past = decoder(written[-1], source_real, *copied, *past, *cross)
            written.append(logits[:, -1:].argmax(-1))
        # The last two tokens are read at once, after three.
        past = [each[:, :, :3] for each in past]
        found += [(torch.cat(written[3:], 1), source_real, *copied, *past, *cross), first]
    return found
