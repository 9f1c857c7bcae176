"""The graphs of an encoder-decoder: "encoder" is called once, "decoder" is called for each new token.

The encoder also computes, once, the keys and values for the cross-attention of every decoder layer, so that a step of
the decoder computes only one token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from headwise.graphs.graph import Computation, Graph, Value
from headwise.graphs.past import PAST, Past, Reading, make_values, pairs
from headwise.graphs.session import Session, Sessions, replace_methods
from headwise.graphs.tokens import doubled, random_tokens
from headwise.models.cross_entropy import summed_cross_entropy
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.nn import DecoderLayer, MultiHeadAttention

SOURCE_IDS = Value("source_ids", torch.int64, ("batch", "source"))
SOURCE_REAL = Value("source_real", torch.bool, ("batch", "source"))  # True = a real token


@torch.no_grad()
def graphs(
    model: EncoderDecoder, real: Sequence[tuple[Tensor, Tensor]] = (), *, longest: int | None = None, begin: int = 0
) -> tuple[Graph, ...]:
    """Return the two graphs of an encoder-decoder, "encoder" and "decoder".

        encoder: source_ids, source_real → cross_keys_0, cross_values_0 … of each layer; memory if the model copies
        decoder: target_ids, source_real, [source_ids, memory,] past_keys_0, past_values_0 …, cross_keys_0 …
                 → logits, keys_0, values_0 …

    The decoder reads [batch, length] tokens that follow the past (the tokens of earlier calls, of which it gets the
    keys and values of each layer). In the first call the past has no tokens; the returned keys and values are the past
    of the next call. The inputs in [ ] are only for a model that copies tokens of the source; such a model returns
    log-probabilities as logits.

    Args:
        real: batches of real sources, (source_ids, source_real), as examples in addition to random sources.
        longest: the maximum number of tokens of a source; None = no limit.
        begin: the id of the token with which a target begins.
    """
    encoder, decoder, config = EncoderGraph(model), DecoderGraph(model), model.config
    table = model.target_embedding if model.source_embedding is None else model.source_embedding
    random = random_tokens(table.num_embeddings, longest)[:2]
    sources = [*doubled(real), *((ids, mask.bool()) for ids, mask, _ in random)]
    copied = (SOURCE_IDS, Value("memory", torch.float32, ("batch", "source", config.dim)))[: 2 * config.copies]
    sizes, width = (config.decoder_layers, config.num_heads), config.dim // config.num_heads
    cross = make_values("cross_", *sizes, "source", width)
    return (
        Graph("encoder", encoder, (SOURCE_IDS, SOURCE_REAL), (*cross, *copied[1:]), sources, bool(real)),
        Graph(
            "decoder",
            decoder,
            (
                Value("target_ids", torch.int64, ("batch", "length")),
                SOURCE_REAL,
                *copied,
                *make_values(PAST, *sizes, "past", width),
                *cross,
            ),
            (
                Value("logits", torch.float32, ("batch", "length", model.target_embedding.num_embeddings)),
                *make_values("", *sizes, "present", width),
            ),
            _steps(encoder, decoder, sources, begin),
            bool(real),
        ),
    )


def run_on(model: EncoderDecoder, sessions: Sessions) -> Callable[..., EncoderDecoderSteps]:
    """Let the graphs do the model's computation. Return the function that makes `EncoderDecoderSteps`, to decode."""
    encoder, decoder = sessions["encoder"], sessions["decoder"]

    def make_steps(model: EncoderDecoder, source_ids: Tensor, source_real: Tensor) -> EncoderDecoderSteps:
        return EncoderDecoderSteps(encoder, decoder, source_ids, source_real)

    def forward(
        source_ids: Tensor,
        target_ids: Tensor,
        source_real: Tensor | None = None,
        *,
        at: Tensor | None = None,
        labels: Tensor | None = None,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        real = torch.ones_like(source_ids, dtype=torch.bool) if source_real is None else source_real
        logits = make_steps(model, source_ids, real).read(target_ids)
        logits = logits if at is None else logits.flatten(0, 1)[at]
        if labels is None:
            return logits
        return summed_cross_entropy(logits, labels, label_smoothing=label_smoothing)

    replace_methods(model, forward=forward)
    return make_steps


class EncoderDecoderSteps(Reading):
    """Decoding steps: an encoder's graph is called once, then a decoder's graph for each token."""

    def __init__(self, encoder: Session, decoder: Session, source_ids: Tensor, source_real: Tensor) -> None:
        wanted = {value.name for value in decoder.inputs}
        names = [value.name for value in encoder.outputs if value.name in wanted]
        found = dict(zip(names, encoder.giving(*names)(source_ids, source_real), strict=True))
        # The inputs are paired by position, not by name, because version 0.1.0 called the second input source_padding.
        source = dict(zip((value.name for value in encoder.inputs), (source_ids, source_real), strict=True))
        super().__init__(decoder, {name: tensor for name, tensor in (source | found).items() if name in wanted})

    def __call__(self, ids: Tensor) -> Tensor:
        return self.read(ids[:, None])[:, 0]


class EncoderGraph(Computation[EncoderDecoder]):
    """The graph "encoder": returns the source's keys and values for each layer, and the memory if the model copies."""

    def forward(self, source_ids: Tensor, source_real: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(source_ids, source_real)
        found: list[Tensor] = []
        for layer in self.model.decoder.layers:
            # AOTInductor packages require contiguous inputs, and these tensors are inputs of the decoder.
            found += [x.contiguous() for x in _cross_attention(layer).project(memory, "kv")]
        return (*found, memory) if self.model.config.copies else tuple(found)


class DecoderGraph(Computation[EncoderDecoder]):
    """The graph "decoder": returns the logits of the next token, and the keys and values of all tokens so far."""

    def forward(self, target_ids: Tensor, source_real: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        model = self.model
        if model.copy is not None:
            source_ids, memory, *given = given  # type: ignore[assignment]
        else:
            # Every layer has its keys and values already, so only the shape of the memory is used.
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


def _steps(
    encoder: EncoderGraph, decoder: DecoderGraph, sources: Sequence[tuple[Tensor, ...]], begin: int
) -> list[tuple[Tensor, ...]]:
    """Make two example calls for each batch: one without a past, and one of two tokens after a past of three."""
    found = []
    for source_ids, source_real in sources:
        *cross, last = encoder(source_ids, source_real)
        cross, copied = (cross, (source_ids, last)) if encoder.model.config.copies else ([*cross, last], ())
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
