"""Lists the modules that have a worksheet, and makes the first step of each, which shows its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from headwise.errors import ArgumentError, WorksheetError
from headwise.language import Sentence
from headwise.models import Bert
from headwise.nn import DecoderLayer, EncoderLayer, LatentAttention, MultiHeadAttention, MultiHeadLatentAttention
from headwise.nn.cross import CrossLayer
from headwise.worksheet import layers, multi_head, multi_head_latent
from headwise.worksheet.builder import Builder, side_by_side
from headwise.worksheet.description import Axis, Matrix, numbered
from headwise.worksheet.given import Given, dense
from headwise.worksheet.multi_head import Reading


def _multi_head(b: Builder, module: MultiHeadAttention, given: Given) -> Matrix:
    memory = given.get("key")
    letter = "S" if memory is None else "Q"
    x = given.sequence(b, "query", "X", letter, dim=module.dim)
    shown, other, values = [x], None, None
    if memory is not None:
        other = given.sequence(b, "key", "Memory", "K", dim=module.dim)
        shown.append(other)
    if given.get("value") is not None and given.batched["value"] is not given.batched.get("key"):
        source = given.get("value")
        if other is None:
            raise ArgumentError(
                "value: expected a key too. Received: key=None. Pass both, or neither for self-attention"
            )
        values = b.given("input", "Values", source, other.rows, numbered("Mᵥ", source.shape[-1]))
        shown.append(values)
    _show_inputs(b, shown)
    reading = given.reading(module, memory=memory)
    return multi_head.attention(b, module, x, other, values, reading, kind="output")


def _latent_multi_head(b: Builder, module: MultiHeadLatentAttention, given: Given) -> Matrix:
    x = given.sequence(b, "query", "X", "S", dim=module.dim)
    _show_inputs(b, [x])
    return multi_head_latent.latent_attention(b, module, x, given.reading(module), kind="output")


def _latents(b: Builder, module: LatentAttention, given: Given) -> Matrix:
    apart = module.read_out is not None and given.get("key") is not None  # the read-out has its own queries
    x = given.sequence(b, "key" if apart else "query", "X", "S", dim=module.latent_dim)
    queries = given.sequence(b, "query", "Queries", "Q", dim=module.latent_dim) if apart else x
    _show_inputs(b, [x, queries] if apart else [x])
    like = torch.zeros(1, module.num_latents, 1)
    allowed = dense(given.get("mask"), given.batched.get("real"), like, module.num_heads, len(x.rows))
    return layers.latents(b, module, x, queries, Reading(allowed))


def _encoder_layer(b: Builder, module: EncoderLayer, given: Given) -> Matrix:
    x = given.sequence(b, "query", "X", "S", dim=module.dim)
    _show_inputs(b, [x])
    return layers.encoder_layer(b, module, x, given.reading(module.attention))


def _decoder_layer(b: Builder, module: DecoderLayer, given: Given) -> Matrix:
    if given.get("value") is not None:
        raise WorksheetError("value: a worksheet shows a decoder layer with one memory; pass it as key, without value")
    x = given.sequence(b, "query", "X", "S", dim=module.dim)
    memory = given.sequence(b, "key", "Memory", "K", dim=module.dim)
    _show_inputs(b, [x, memory])
    own = given.reading(module.self_attention)
    masked = {"mask": "memory_mask", "real": "memory_real"}
    other = given.reading(module.cross_attention, **masked, memory=given.get("key"), query_real=given.get("real"))
    return layers.decoder_layer(b, module, x, memory, own, other)


def _cross_layer(b: Builder, module: CrossLayer, given: Given) -> Matrix:
    x = given.sequence(b, "query", "X", "Q", dim=module.dim)
    memory = given.sequence(b, "key", "Memory", "K", dim=module.dim)
    _show_inputs(b, [x, memory])
    return layers.cross_layer(b, module, x, memory, given.reading(module.attention, memory=given.get("key")))


def _bert(b: Builder, model: Bert, given: Given) -> Matrix:
    model.config.require_bert("a worksheet of Bert")
    ids = given.get("input_ids")
    kinds = given.get("token_type_ids")
    table: Any = model.embeddings
    rows, cols = Axis("S", given.tokens), numbered("M", model.config.dim)
    words = b.given("input", "Word", table.word(ids), rows, cols)
    places = b.given("parameter", "Place", table.position.weight[: len(ids)], rows, cols)
    sentence = b.given(
        "parameter", "Sentence", table.token_type(torch.zeros_like(ids) if kinds is None else kinds), rows, cols
    )
    b.step(
        "Embeddings",
        "The rows of BERT's three embedding tables for this text: by token, by position, by sentence.",
        "word [S × M], position [S × M], sentence [S × M]",
        *side_by_side([each] for each in (words, places, sentence)),
    )
    like = torch.zeros(1, len(ids), 1)
    allowed = dense(None, given.batched.get("real"), like, None, len(ids))
    return layers.bert(b, model, words, sentence, places, Reading(allowed))


def _show_inputs(b: Builder, shown: list[Matrix]) -> None:
    second = " The first attends to the second." if len(shown) > 1 else ""
    b.step(
        "Inputs",
        Sentence("Each token is a row of numbers. All later steps are computed from them.{second}").format(
            second=second
        ),
        ",  ".join(f"{each.name} [{each.rows.letter} × {each.cols.letter}]" for each in shown),
        shown,
    )


class Kind(NamedTuple):
    """For one class of modules: the function that makes its steps, and the title and description of its worksheet."""

    build: Callable[[Builder, Any, Given], Matrix]
    title: str
    about: str


KINDS: dict[Any, Kind] = {
    MultiHeadAttention: Kind(
        _multi_head,
        "Multi-head attention, step by step",
        "Several heads attend to the same tokens, each with its own projections (Vaswani et al. 2017).",
    ),
    MultiHeadLatentAttention: Kind(
        _latent_multi_head,
        "Multi-head latent attention, step by step",
        "Keys and values of all heads are computed from one short latent per token, and only that is cached "
        "(DeepSeek-V2, 2024).",
    ),
    LatentAttention: Kind(
        _latents,
        "Attention through latents, step by step",
        "A few learned vectors attend to an input of any length (Set Transformer, 2019; Perceiver, 2021).",
    ),
    EncoderLayer: Kind(
        _encoder_layer,
        "An encoder layer, step by step",
        "Attention within one sequence, then a feed-forward network, each added to its input.",
    ),
    DecoderLayer: Kind(
        _decoder_layer,
        "A decoder layer, step by step",
        "Attention within its sequence, attention to a memory, then a feed-forward network.",
    ),
    CrossLayer: Kind(
        _cross_layer, "A cross layer, step by step", "Attention to another sequence, then a feed-forward network."
    ),
    Bert: Kind(
        _bert,
        "BERT, step by step",
        "Embeddings, then layers of attention and a feed-forward network, each added to its input and normalised "
        "(Devlin et al. 2018).",
    ),
}
