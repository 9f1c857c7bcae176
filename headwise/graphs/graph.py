"""`Graph`: a computation of a model as a function of named tensors, which exporters trace and runtimes call."""

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
        axes: for each axis a number, which is a fixed size, or a word ("batch", "length"), which is a dynamic size. A
            word means the same size wherever it occurs in one graph.
    """

    name: str
    dtype: torch.dtype
    axes: tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """A computation of a model, as a function of named tensors.

    Args:
        name: the name of the graph's file without suffix: "model", or "encoder" and "decoder".
        module: the module that computes the graph. It takes the inputs by position, and returns a tensor, or a tuple of
            tensors in the order of `outputs`. It must be traceable by `torch.export`, in eval mode, on the CPU and
            float32.
        inputs, outputs: the names, dtypes and axes of the graph's tensors.
        examples: at least two sets of input tensors of different sizes, with real inputs first. The graph is traced
            with the first set, and compared on all sets. In the first set, no dynamic axis may have size 0 or 1. The
            tensors are made contiguous, because AOTInductor packages require it.
        real: whether any example is a real input, so that not all examples are random.
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
    """The base class of modules that compute a part of a model, as a graph: from tensors only, to tensors only."""

    def __init__(self, model: ModelT) -> None:
        super().__init__()
        self.model = model
