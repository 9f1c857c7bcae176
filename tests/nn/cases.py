"""A module of every kind, and how it is called: for the tests of what all of them promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from headwise import masks
from headwise.nn import (
    Decoder,
    DecoderLayer,
    Encoder,
    EncoderLayer,
    LatentAttention,
    MultiHeadAttention,
    MultiHeadLatentAttention,
    positions,
)

DIM = 32
CAUSAL = masks.causal()


def latent(**options: Any) -> MultiHeadLatentAttention:
    return MultiHeadLatentAttention(DIM, 4, q_rank=12, kv_rank=16, nope_dim=8, rope_dim=4, value_head_dim=8, **options)


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    other: bool = False  # reads a second sequence
    mask: masks.Mask | None = CAUSAL
    decodes: bool = True  # one token at a time gives the same


CASES = {
    "multi-head": Case(lambda: MultiHeadAttention(DIM, 4)),
    "multi-head, cross": Case(lambda: MultiHeadAttention(DIM, 4), other=True, mask=None),
    "multi-head, shared": Case(lambda: MultiHeadAttention(DIM, 4, projection="shared")),
    "multi-head, window": Case(
        lambda: MultiHeadAttention(DIM, 4), mask=masks.window(2, 0) | masks.global_tokens([0]) & masks.causal()
    ),
    "multi-head, everything": Case(
        lambda: MultiHeadAttention(
            *(DIM, 4),
            num_kv_heads=2,
            head_dim=6,
            value_head_dim=10,
            qk_norm="rms",
            softcap=5.0,
            sinks=True,
            gate=True,
            positions=positions.Rope(6),
        )
    ),
    "multi-head, ALiBi": Case(lambda: MultiHeadAttention(DIM, 4, positions=positions.Alibi(4))),
    "multi-head, T5": Case(lambda: MultiHeadAttention(DIM, 4, positions=positions.T5Buckets(4), scale=1.0)),
    "multi-head, Shaw": Case(lambda: MultiHeadAttention(DIM, 4, positions=positions.ShawRelative(8, 3, values=True))),
    "latent, expand": Case(lambda: latent(path="expand")),
    "latent, absorb": Case(lambda: latent(path="absorb")),
    "latents": Case(lambda: LatentAttention(5, DIM, num_heads=4, self_layers=1), mask=None, decodes=False),
    "latents, read out": Case(
        lambda: LatentAttention(5, DIM, num_heads=4, num_reads=2, read_out=True), mask=None, decodes=False
    ),
    "encoder layer": Case(lambda: EncoderLayer(DIM, 4)),
    "decoder layer": Case(lambda: DecoderLayer(DIM, 4), other=True),
    "encoder": Case(lambda: Encoder(DIM, num_heads=4, num_layers=2)),
    "decoder": Case(lambda: Decoder(DIM, num_heads=4, num_layers=2), other=True),
}
