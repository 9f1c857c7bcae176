"""Dropout by the native kernels; src/dropout.hpp. Only this module knows the layout of hw_dropout."""

from __future__ import annotations

import struct
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from headwise.native.attend import DTYPES, called, watching
from headwise.native.library import missing

_LAYOUT = struct.Struct("=4qdq2Q")


def refuse(x: Tensor) -> str | None:
    """Return why the native kernels cannot apply dropout to x, as a phrase for a message; None if they can."""
    if x.device.type != "cpu":
        return f"they run on the CPU (x is on {x.device})"
    if x.dtype not in DTYPES:
        return f"they have no {str(x.dtype).removeprefix('torch.')}"
    if torch.compiler.is_compiling():
        return "torch.compile has its own"
    if (why := watching(x)) is not None:
        return f"{why} would not see what they do"
    return missing()


def dropout(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Drop numbers of x at random: x / (1 - p) where a number is kept, else 0. Derivatives of any order exist.

    Which numbers are dropped depends on torch's generator on the CPU, not on the number of threads. A TorchFunctionMode
    sees the call, with the name and the arguments of `torch.nn.functional.dropout`.

    Args:
        x: a tensor that `refuse` does not refuse.
        p: the probability with which a number is dropped: from 0 to 1.
        training: False = nothing is dropped.
    """
    if torch._C._len_torch_function_stack():
        seen: Tensor = handle_torch_function(dropout, (x,), x, p, training)
        return seen
    if not training or p == 0:
        return x
    out: Tensor = _Dropout.apply(x, p, int(torch.randint(2**62, (), device="cpu")))
    return out


class _Dropout(torch.autograd.Function):
    """The autograd function of dropout: its backward applies the same function, with the same seed, to the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float, seed: int) -> Tensor:
        ctx.probability, ctx.seed = probability, seed
        x = x.contiguous()
        out = torch.empty_like(x)
        sizes = (_LAYOUT.size, DTYPES[x.dtype], torch.get_num_threads(), x.numel())
        called("hw_dropout_of", _LAYOUT.pack(*sizes, probability, seed, x.data_ptr(), out.data_ptr()))
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, None, None]:
        return _Dropout.apply(d_out, ctx.probability, ctx.seed), None, None
