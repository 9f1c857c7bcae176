"""A PyTorch module of each kind that has a twin in Keras, with options that differ from the defaults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch
from torch import nn

from headwise import models
from headwise import nn as hnn
from headwise.keras.layer import TWINS
from headwise.nn import positions
from headwise.nn.cross import CrossLayer
from headwise.nn.feed_forward import Activation

SMALL = models.BertConfig(vocab_size=30, dim=8, num_layers=2, num_heads=2, ffn_dim=12, max_positions=10, dropout=0.2)
MLA: dict[str, Any] = {"kv_rank": 6, "nope_dim": 4, "rope_dim": 2, "value_head_dim": 5}


def grouped(**options: Any) -> hnn.MultiHeadAttention:
    return hnn.MultiHeadAttention(8, 4, num_kv_heads=2, **options)


# Of MultiHeadAttention with 16 channels in 4 heads.
HEADS: dict[str, dict[str, Any]] = {
    "plain": {},
    "multi_query": {"num_kv_heads": 1, "bias": False},
    "no_bias": {"bias": False},
    "output_bias": {"bias": False, "output_bias": True},
    "grouped": {"num_kv_heads": 2},
    "head_dim": {"head_dim": 6, "value_head_dim": 5},
    "separate": {"kdim": 6, "vdim": 10},
    "shared": {"projection": "shared"},
    "shared_without_bias": {"projection": "shared", "bias": False},
    "qk_norm_rms": {"qk_norm": "rms", "norm_eps": 1e-3},
    "qk_norm_layer": {"qk_norm": "layer", "norm_eps": 1e-2},
    "sinks_gate_softcap": {"sinks": True, "gate": True, "softcap": 2.0, "scale": 0.7},
    "dropout": {"dropout": 0.25},
    "rope": {"positions": positions.Rope(4, base=100.0, interleaved=True, rotary_dim=2)},
    "yarn": {"positions": positions.Rope(4, scaling=positions.Yarn(4.0, 16))},
}

MODULES: dict[str, Callable[[], nn.Module]] = {
    "Alibi": lambda: positions.Alibi(6, 4.0),
    "Learned": lambda: positions.Learned(10, 8, std=0.5),
    "Rope": lambda: positions.Rope(8, base=50.0, interleaved=True, rotary_dim=6),
    "Rope, Linear": lambda: positions.Rope(8, scaling=positions.Linear(2.0)),
    "Rope, DynamicNTK": lambda: positions.Rope(8, scaling=positions.DynamicNTK(2.0, 4)),
    "Rope, Yarn": lambda: positions.Rope(8, scaling=positions.Yarn(4.0, 32)),
    "Rope, Llama3": lambda: positions.Rope(8, scaling=positions.Llama3(8.0, 1.0, 4.0, 32)),
    "ShawRelative": lambda: positions.ShawRelative(4, 3),
    "ShawRelative, values": lambda: positions.ShawRelative(4, (3, 0), values=True, value_dim=5),
    "Sinusoidal": lambda: positions.Sinusoidal(8, base=50.0, interleaved=False),
    "T5Buckets": lambda: positions.T5Buckets(4, 8, 20, bidirectional=False, std=0.3),
    "DropPath": lambda: hnn.DropPath(0.3),
    "FeedForward": lambda: hnn.FeedForward(8, activation="swiglu", dropout=0.1, bias=False),
    **{f"FeedForward, {name}": partial(hnn.FeedForward, 8, 12, activation=name) for name in get_args(Activation)},
    **{f"MultiHeadAttention, {name}": partial(hnn.MultiHeadAttention, 16, 4, **o) for name, o in HEADS.items()},
    "MultiHeadAttention, Alibi": lambda: grouped(positions=positions.Alibi(4)),
    "MultiHeadAttention, T5Buckets": lambda: grouped(positions=positions.T5Buckets(4, 8, 20), scale=1.0),
    "MultiHeadAttention, ShawRelative": lambda: grouped(positions=positions.ShawRelative(2, 3, values=True)),
    "MultiHeadLatentAttention": lambda: hnn.MultiHeadLatentAttention(8, 2, q_rank=7, **MLA),
    "MultiHeadLatentAttention, options": lambda: hnn.MultiHeadLatentAttention(
        *(8, 2),
        q_rank=None,
        bias=True,
        norm_eps=1e-2,
        dropout=0.3,
        path="absorb",
        positions=positions.Rope(2, scaling=positions.Yarn(4.0, 16, mscale_all_dim=1.0)),
        **MLA,
    ),
    "CrossLayer": lambda: CrossLayer(
        8, 2, memory_dim=6, query_residual=False, dropout=0.1, scale=0.3, activation="swiglu", bias=False, norm_eps=1e-2
    ),
    "CrossLayer, post-norm": lambda: CrossLayer(
        8, 2, norm_first=False, head_dim=3, value_head_dim=5, ffn_dim=10, activation="relu"
    ),
    "LatentAttention": lambda: hnn.LatentAttention(3, 8, 6, 2, num_reads=3, share_reads=True, self_layers=2),
    "LatentAttention, read_out": lambda: hnn.LatentAttention(
        *(3, 8, 6, 2),
        num_reads=2,
        self_layers=1,
        self_heads=4,
        read_out=True,
        output_dim=10,
        query_residual=False,
        latent_names=["a", "b", "c"],
        activation="geglu",
        norm_eps=1e-3,
        bias=False,
        scale=0.2,
    ),
    "LatentAttention, widths": lambda: hnn.LatentAttention(
        *(2, 8, None, 2),
        read_out=True,
        head_dim=3,
        value_head_dim=5,
        ffn_dim=20,
        norm_first=False,
        activation="relu",
        dropout=0.1,
    ),
    "EncoderLayer": lambda: hnn.EncoderLayer(8, 2, activation="geglu_tanh", norm="rms", bias=False, drop_path=0.2),
    "EncoderLayer, attention": lambda: hnn.EncoderLayer(
        *(8,),
        attention=grouped(qk_norm="layer", positions=positions.Rope(2)),
        norm_first=False,
        dropout=0.1,
        ffn_dropout=0.3,
        norm_eps=1e-2,
    ),
    "EncoderLayer, rms after": lambda: hnn.EncoderLayer(8, 2, norm="rms", norm_first=False, ffn_dim=5, norm_eps=1e-2),
    "EncoderLayer, latent": lambda: hnn.EncoderLayer(
        8, attention=hnn.MultiHeadLatentAttention(8, 2, q_rank=None, **MLA)
    ),
    "DecoderLayer": lambda: hnn.DecoderLayer(8, 2, memory_dim=6, dropout=0.2, attention_dropout=0.1),
    "DecoderLayer, attention": lambda: hnn.DecoderLayer(
        8, 2, self_attention=grouped(positions=positions.Alibi(4)), ffn_dim=10, norm_first=False, activation="silu"
    ),
    "Bert": lambda: models.Bert(SMALL),
}


def moved(module: nn.Module) -> Any:
    """The module in eval mode, of which every parameter differs from where it began."""
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=drawn)
    return module.eval()


def made(name: str) -> Any:
    """A module of `MODULES`."""
    return moved(MODULES[name]())


def twin_of(module: nn.Module) -> Any:
    """The class of Keras layers that is the twin of the module's."""
    return next(layer for layer, twin in TWINS.items() if twin is type(module))
