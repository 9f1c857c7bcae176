"""Reads the constructor arguments of a PyTorch module, for its Keras twin (the Keras layer with the same options).

Modules do not keep their arguments, so each class has a reader here. An argument that is itself a module (positions,
attention) is passed to `convert`, which makes its Keras twin.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from headwise import models
from headwise import nn as torch_nn
from headwise.errors import ArgumentError
from headwise.nn import positions
from headwise.nn.cross import CrossLayer
from headwise.nn.feed_forward import FeedForward

Options = dict[str, Any]
Convert = Callable[[nn.Module], Any]


def multi_head(module: torch_nn.MultiHeadAttention, convert: Convert) -> Options:
    """The constructor arguments of a MultiHeadAttention."""
    first: Any = module.qkv if module.is_fused else module.q
    norm = module.q_norm
    return {
        **_same(module, "dim", "num_heads", "num_kv_heads", "head_dim", "value_head_dim", "kdim", "vdim"),
        **_same(module, "softcap", "dropout", "scale", "projection", "kernel"),
        # A shared projection has no biases, so there `bias` is only the default of `output_bias`.
        "bias": (module.out if module.projection == "shared" else first).bias is not None,
        "output_bias": module.out.bias is not None,
        **({} if norm is None else {"qk_norm": _norm(norm), "norm_eps": _eps(norm)}),
        "sinks": module.sinks is not None,
        "gate": module.gate is not None,
        "positions": None if module.positions is None else convert(module.positions),
    }


def multi_head_latent(module: torch_nn.MultiHeadLatentAttention, convert: Convert) -> Options:
    """The constructor arguments of a MultiHeadLatentAttention."""
    return {
        **_same(module, "dim", "num_heads", "q_rank", "kv_rank", "nope_dim", "rope_dim", "value_head_dim"),
        **_same(module, "dropout", "scale", "path", "kernel"),
        "bias": module.out.bias is not None,
        "norm_eps": _eps(module.kv_norm),
        "positions": convert(module.positions),
    }


def latent(module: torch_nn.LatentAttention, convert: Convert) -> Options:
    """The constructor arguments of a LatentAttention."""
    reader, out = module.reads[0], module.read_out
    first: Options = cross(reader, convert)  # type: ignore[arg-type]
    among: Any = reader.layers
    shared = {"norm_first", "activation", "dropout", "scale", "norm_eps", "bias", "kernel"}
    found = {
        **_same(module, "num_latents", "latent_dim", "input_dim", "num_heads", "num_reads", "latent_names"),
        **{name: value for name, value in first.items() if name in shared},
        "share_reads": len(module.reads) < module.num_reads,
        "self_layers": len(among),
        "self_heads": among[0].attention.num_heads if len(among) else None,
        "read_out": out is not None,
    }
    parts = [first] if out is None else [first, cross(out, convert)]
    for name, default in _OF_WIDTH.items():  # None means another number in a layer of another width
        found[name] = None if all(part[name] == default(part) for part in parts) else first[name]
    if out is not None:
        found |= {"output_dim": module.output_dim, "query_residual": out.query_residual}
    return found


def cross(module: CrossLayer, convert: Convert) -> Options:
    """The constructor arguments of a CrossLayer."""
    attention = module.attention
    return {
        **_same(module, "dim", "memory_dim", "norm_first", "query_residual"),
        **_same(attention, "num_heads", "head_dim", "value_head_dim", "scale", "kernel"),
        **_read_feed_forward(module),
        "norm_eps": _eps(module.attention_norm),
    }


def feed_forward(module: FeedForward, convert: Convert) -> Options:
    """The constructor arguments of a FeedForward."""
    bias = module.up.bias is not None
    return {**_same(module, "dim", "hidden_dim", "activation"), "dropout": _rate(module.dropout), "bias": bias}


def encoder_layer(module: torch_nn.EncoderLayer, convert: Convert) -> Options:
    """The constructor arguments of an EncoderLayer, with its attention."""
    return {**_transformer_layer(module, module.attention_norm), "attention": convert(module.attention)}


def decoder_layer(module: torch_nn.DecoderLayer, convert: Convert) -> Options:
    """The constructor arguments of a DecoderLayer, with its two attentions."""
    return {
        **_transformer_layer(module, module.self_attention_norm),
        "self_attention": convert(module.self_attention),
        "cross_attention": convert(module.cross_attention),
    }


def shaw_relative(module: positions.ShawRelative, convert: Convert) -> Options:
    """The constructor arguments of a ShawRelative."""
    with_values = {"value_dim": module.value_dim} if module.uses_values else {}
    return {
        "head_dim": module.head_dim,
        "max_distance": (module.left, module.right),
        "values": module.uses_values,
        **with_values,
    }


def alike(module: nn.Module, convert: Convert) -> Options:
    """Read the constructor arguments of a module that stores each argument in an attribute with its name."""
    return _same(module, *inspect.signature(type(module)).parameters)


READERS: dict[type[nn.Module], Callable[[Any, Convert], Options]] = {
    torch_nn.MultiHeadAttention: multi_head,
    torch_nn.MultiHeadLatentAttention: multi_head_latent,
    torch_nn.LatentAttention: latent,
    torch_nn.EncoderLayer: encoder_layer,
    torch_nn.DecoderLayer: decoder_layer,
    CrossLayer: cross,
    FeedForward: feed_forward,
    torch_nn.DropPath: alike,
    models.Bert: alike,
    positions.Rope: alike,
    positions.Alibi: alike,
    positions.T5Buckets: alike,
    positions.ShawRelative: shaw_relative,
    positions.Sinusoidal: alike,
    positions.Learned: alike,
}


def _same(module: Any, *names: str) -> Options:
    """Read the arguments with these names from the attributes of the module."""
    return {name: getattr(module, name) for name in names}


def _transformer_layer(module: Any, norm: nn.Module) -> Options:
    return {
        **_same(module, "dim", "norm_first"),
        **_read_feed_forward(module),
        "ffn_dropout": _rate(module.mlp.dropout),
        "drop_path": module.drop_path.probability,
        "norm": _norm(norm),
        "norm_eps": _eps(norm),
    }


def _read_feed_forward(module: Any) -> Options:
    found = feed_forward(module.mlp, lambda part: part)
    return {
        "ffn_dim": found["hidden_dim"],
        "activation": found["activation"],
        "dropout": _rate(module.dropout),
        "bias": found["bias"],
    }


def _rate(dropout: nn.Module) -> float:
    if not isinstance(dropout, nn.Dropout):
        raise ArgumentError(f"from_torch: expected an nn.Dropout. Received: {type(dropout).__name__}")
    return dropout.p


def _norm(norm: nn.Module) -> str:
    for name, cls in (("rms", nn.RMSNorm), ("layer", nn.LayerNorm)):
        if isinstance(norm, cls):
            return name
    raise ArgumentError(f"from_torch: expected an nn.LayerNorm or nn.RMSNorm. Received: {type(norm).__name__}")


def _eps(norm: Any) -> float:
    _norm(norm)
    if norm.eps is None:
        raise ArgumentError("norm_eps: expected a number. Received: an nn.RMSNorm with eps=None")
    return float(norm.eps)


# The number that None means in each of these options of a CrossLayer.
_OF_WIDTH: dict[str, Callable[[Options], int | None]] = {
    "head_dim": lambda part: None if part["dim"] % part["num_heads"] else part["dim"] // part["num_heads"],
    "value_head_dim": lambda part: part["head_dim"],
    "ffn_dim": lambda part: FeedForward(part["dim"], activation=part["activation"], device="meta").hidden_dim,
}
