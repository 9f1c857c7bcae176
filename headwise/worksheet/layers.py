"""Makes the steps of whole layers: encoder, decoder and cross layers, latent attention, and BERT."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from torch import nn

from headwise.errors import WorksheetError
from headwise.language import Sentence
from headwise.models import Bert
from headwise.nn import DecoderLayer, EncoderLayer, LatentAttention, MultiHeadAttention, MultiHeadLatentAttention
from headwise.nn.cross import CrossLayer
from headwise.worksheet.builder import Builder
from headwise.worksheet.description import Axis, Matrix, numbered
from headwise.worksheet.multi_head import Reading, attention
from headwise.worksheet.multi_head_latent import latent_attention
from headwise.worksheet.parts import feed_forward, normalised, residual


def _add_attention(
    b: Builder,
    layer: Any,
    x: Matrix,
    norm: nn.Module,
    module: nn.Module,
    memory: Matrix | None,
    reading: Reading,
    *,
    add: bool = True,
) -> Matrix:
    """Add worksheet steps for a layer's attention and for the sum with its input x; return the result.

    The attention may be multi-head or multi-head latent attention. Without `add`, x is not added.
    """

    def attended(y: Matrix) -> Matrix:
        if isinstance(module, MultiHeadLatentAttention) and memory is None:
            return latent_attention(b, module, y, reading, output="Attended")
        if isinstance(module, MultiHeadAttention):
            return attention(b, module, y, memory, None, reading, output="Attended")
        raise WorksheetError(
            f"attention must be a MultiHeadAttention or MultiHeadLatentAttention for a worksheet. Received: "
            f"{type(module).__name__}"
        )

    return residual(b, layer, x, norm, "attention", attended, add=add)


def _add_mlp(b: Builder, layer: Any, x: Matrix) -> Matrix:
    return residual(b, layer, x, layer.mlp_norm, "feed_forward", lambda y: feed_forward(b, layer.mlp, y))


def encoder_layer(b: Builder, layer: EncoderLayer, x: Matrix, reading: Reading) -> Matrix:
    """Add worksheet steps for an encoder layer: attention, feed-forward, each with residual; return the output."""
    return _add_mlp(b, layer, _add_attention(b, layer, x, layer.attention_norm, layer.attention, None, reading))


def decoder_layer(b: Builder, layer: DecoderLayer, x: Matrix, memory: Matrix, own: Reading, other: Reading) -> Matrix:
    """Add worksheet steps for a decoder layer: self-attention, cross-attention, feed-forward; return the output."""
    with b.part("Self-attention", "Self"):
        x = _add_attention(b, layer, x, layer.self_attention_norm, layer.self_attention, None, own)
    with b.part("Cross-attention", "Cross"):
        x = _add_attention(b, layer, x, layer.cross_attention_norm, layer.cross_attention, memory, other)
    return _add_mlp(b, layer, x)


def cross_layer(b: Builder, layer: CrossLayer, x: Matrix, memory: Matrix, reading: Reading) -> Matrix:
    """Add worksheet steps for a cross layer: attention to a memory, then feed-forward; return the output."""
    if layer.memory_norm is not None:
        (memory,) = normalised(b, layer.memory_norm, [memory], ["Memory_normed"], "memory", "Norm of the memory")
    add = layer.query_residual
    x = _add_attention(b, layer, x, layer.attention_norm, layer.attention, memory, reading, add=add)
    return _add_mlp(b, layer, x)


def latents(b: Builder, module: LatentAttention, x: Matrix, queries: Matrix, reading: Reading) -> Matrix:
    """Add worksheet steps for latent attention, and return the output.

    Latents attend to the input and to each other; then queries may attend to the latents.
    """
    names = Axis("N", module.latent_names)
    z = b.given("parameter", "Latents", module.latents, names, numbered("M", module.latent_dim))
    b.step(
        "Latents",
        Sentence("{count} learned vectors, the same for every input, are used as queries.").format(count=len(names)),
        "Z = latents [N × M]",
        [z],
    )
    several = (
        module.num_reads > 1
        or module.read_out is not None
        or any(isinstance(each, EncoderLayer) for each in module.reads.modules())
    )
    for i in range(module.num_reads):
        read: Any = module.reads[min(i, len(module.reads) - 1)]
        with b.part(Sentence("Read {i}").format(i=i + 1), f"Read{i + 1}") if several else contextlib.nullcontext():
            z = cross_layer(b, read, z, x, reading)
        for j, layer in enumerate(read.layers):
            with b.part(Sentence("Read {i}, layer {j}").format(i=i + 1, j=j + 1), f"Read{i + 1}_layer{j + 1}"):
                z = encoder_layer(b, layer, z, _allow_all(names, names))
    if module.num_reads > len(module.reads):
        b.notes.append(
            "In the module, the second read and all later ones share their weights. Here each has its own cells: a "
            "change in one does not change the others."
        )
    if module.read_out is not None:
        with b.part("Read-out", "Out"):
            z = cross_layer(b, module.read_out, queries, z, _allow_all(queries.rows, names))
    return z


def _allow_all(rows: Axis, cols: Axis) -> Reading:
    """Return a `Reading` in which each row may attend to each column."""
    return Reading(np.ones((1, len(rows), len(cols)), dtype=bool))


def bert(b: Builder, model: Bert, words: Matrix, kinds: Matrix, places: Matrix, reading: Reading) -> Matrix:
    """Add worksheet steps for BERT, the embeddings and then the layers, and return the output."""
    total = b.cells(
        "Embedded",
        words.rows,
        words.cols,
        f"{words.name}[i,j]+{places.name}[i,j]+{kinds.name}[i,j]",
    )
    b.step(
        "Add the embeddings",
        "Three vectors are added: for the token, for its position and for its sentence.",
        "word + position + sentence",
        [total],
    )
    (x,) = normalised(b, model.embeddings.norm, [total], ["X"], "embeddings", "Norm of the embeddings")
    for i, layer in enumerate(model.layers):
        assert isinstance(layer, EncoderLayer)
        with (
            b.part(Sentence("Layer {i}").format(i=i + 1), f"Layer{i + 1}")
            if len(model.layers) > 1
            else contextlib.nullcontext()
        ):
            x = encoder_layer(b, layer, x, reading)
    return x
