"""The graph of a module of `headwise.nn`, with a constant mask."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise import nn as layers
from headwise.graphs.axes import name_axes, read_sizes
from headwise.graphs.graph import Graph, Value
from headwise.graphs.tokens import SIZES
from headwise.masks import Mask

MODULES = (
    layers.Decoder,
    layers.DecoderLayer,
    layers.Encoder,
    layers.EncoderLayer,
    layers.LatentAttention,
    layers.MultiHeadAttention,
    layers.MultiHeadLatentAttention,
)


def graph(module: nn.Module, mask: Mask | Tensor | None) -> Graph:
    """Return the graph "model" of a module of `headwise.nn`.

        model: hidden [batch, length, dim], real bool [batch, length] (True = a real token) → output

    The graph of a decoder has a further input after `hidden`: memory [batch, memory_length, memory_dim].

    Args:
        module: one of `MODULES`.
        mask: the mask of every call (True = may attend); None = all pairs of query and key are allowed.
    """
    dim = module.input_dim if isinstance(module, layers.LatentAttention) else module.dim
    hidden = Value("hidden", torch.float32, ("batch", "length", int(dim)))  # type: ignore[arg-type]
    real = Value("real", torch.bool, ("batch", "length"))
    memory = _memory(module)
    inputs = (hidden, *memory, real)
    drawn = torch.Generator().manual_seed(0)
    examples = []
    for number, (batch, length) in enumerate(SIZES):
        sizes = {"batch": batch, "length": length, "memory_length": 7 + 2 * number}
        shapes = [[sizes[axis] if isinstance(axis, str) else axis for axis in value.axes] for value in inputs[:-1]]
        tokens = torch.ones(batch, length, dtype=torch.bool)
        tokens[1:, length - length // 3 :] = False
        examples.append((*(torch.randn(shape, generator=drawn) for shape in shapes), tokens))
    called = _Called(module.eval(), mask)
    with torch.no_grad():
        outputs = [called(*given) for given in examples]
    output = Value("output", torch.float32, name_axes("output", outputs, read_sizes(inputs, examples)))
    return Graph("model", called, inputs, (output,), examples)


def _memory(module: nn.Module) -> tuple[Value, ...]:
    layer: Any = module.layers[0] if isinstance(module, layers.Decoder) else module
    if not isinstance(layer, layers.DecoderLayer):
        return ()
    return (Value("memory", torch.float32, ("batch", "memory_length", int(layer.cross_attention.kdim))),)


class _Called(nn.Module):
    """A module that is called with its constant mask: a function of tensors only, as tracers require."""

    def __init__(self, module: nn.Module, mask: Mask | Tensor | None) -> None:
        super().__init__()
        self.module, self.mask = module, mask

    def forward(self, hidden: Tensor, *given: Tensor) -> Tensor:
        *memory, real = given
        out: Tensor = self.module(hidden, *memory, mask=self.mask, real=real)
        return out
