"""Functions of a few tensors, small enough to check by hand, and what a trace of them gives."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Softmax, Trace
from headwise.doctor.reading.trace import trace

B, N, M = 2, 3, 4


def follow(function: Callable[..., Tensor], *inputs: Tensor, module: nn.Module | None = None) -> Trace:
    return trace(module or nn.Module(), inputs, lambda: function(*inputs), lambda y: y)


def numbered() -> Tensor:
    """[B, N, M]: every number is its own place, so that a moved number says where it came from."""
    return torch.arange(B * N * M).float().reshape(B, N, M)


def inputs(count: int = 1, shape: tuple[int, ...] = (B, N, M)) -> list[Tensor]:
    return [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(count)]


def positions(run: Trace) -> list:
    return marks.position_of(run.out.token).tolist()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(M, 6)


def softmax_of(run: Trace) -> Softmax:
    assert len(run.softmaxes) == 1
    return run.softmaxes[0]
