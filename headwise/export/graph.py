"""`Graph`: one computation of a model as a function of named tensors: what an exporter traces and a runtime calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Value:
    """One input or output of a graph.

    Args:
        name: as the exported file has it.
        dtype: torch's.
        axes: a number is a fixed size; a word is a size that may be any ("batch", "length"), the same wherever the word
            stands in one graph.
    """

    name: str
    dtype: torch.dtype
    axes: tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """A function of tensors.

    Args:
        name: of its file, without suffix: "model", or "encoder" and "decoder".
        module: takes the inputs by position, and returns a tensor or a tuple of tensors in the order of `outputs`.
            It must be traceable by `torch.export`; in eval mode, on the CPU, float32.
        inputs, outputs: what it takes and gives.
        examples: tensors for the inputs, several times, of different sizes, real ones first: it is traced with the
            first and compared on all. At least two, and the first has no axis of a word with size 0 or 1. They are made
            contiguous: what AOTInductor compiles reads no others.
    """

    name: str
    module: nn.Module
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    examples: Sequence[tuple[Tensor, ...]]

    def __post_init__(self) -> None:
        examples = [tuple(tensor.contiguous() for tensor in given) for given in self.examples]
        object.__setattr__(self, "examples", examples)
