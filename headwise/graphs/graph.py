"""`Graph`: one computation of a model as a function of named tensors, which exporters trace and runtimes call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

ModelT = TypeVar("ModelT", bound=nn.Module)


@dataclass(frozen=True)
class Value:
    """One input or output of a graph.

    Args:
        name: the name in the exported file.
        dtype: the dtype in torch.
        axes: a number is a fixed size; a word ("batch", "length") is a dynamic size, the same wherever the word occurs
            in one graph.
    """

    name: str
    dtype: torch.dtype
    axes: tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """A function of tensors.

    Args:
        name: the name of its file without suffix: "model", or "encoder" and "decoder".
        module: takes the inputs by position, and returns a tensor or a tuple of tensors in the order of `outputs`.
            It must be traceable by `torch.export`; in eval mode, on the CPU, float32.
        inputs, outputs: names, dtypes and axes of its tensors.
        examples: at least two sets of input tensors of different sizes, real inputs first. The graph is traced with the
            first set and compared on all. In the first set, no dynamic axis may have size 0 or 1. The tensors are made
            contiguous, because AOTInductor packages require it.
        real: whether there are real inputs among the examples, not only random ones.
    """

    name: str
    module: nn.Module
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    examples: Sequence[tuple[Tensor, ...]]
    real: bool = False

    def __post_init__(self) -> None:
        examples = [tuple(tensor.contiguous() for tensor in given) for given in self.examples]
        object.__setattr__(self, "examples", examples)


class Computation(nn.Module, Generic[ModelT]):
    """The module of a graph that is only a part of a model: its `forward` is a function of tensors only."""

    def __init__(self, model: ModelT) -> None:
        super().__init__()
        self.model = model
