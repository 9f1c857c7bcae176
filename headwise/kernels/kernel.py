"""The interface of a kernel: a module with three functions, `refuse`, `cost` and `run`, and the options it supports."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from torch import Tensor
from torch.compiler import is_compiling
from torch.nn.functional import pad

from headwise.call import AttentionCall
from headwise.kernels.speeds import CPU, CPU_HALF, CUDA, CUDA_HALF, Machine
from headwise.language import Sentence


@dataclasses.dataclass(frozen=True)
class Cost:
    """The estimated cost of a call's forward pass. Its time is nominal: only the ratios of times count."""

    flops: int  # of the two matrix products: 2 · cells · (D + E)
    bytes: int  # read and written, intermediate results included
    peak: int  # bytes of memory beyond the inputs at the worst moment, the output included
    time: float  # seconds at nominal speeds (`speeds.py`): the plan compares this
    blocks: Blocks | None = None  # None if the kernel does not compute by blocks
    cutter: str | None = None  # the name of the cutter that cuts the mask into tiles, if there is one


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel divides the Q × K matrix: into blocks of `height` queries × `width` keys, over all matrices."""

    height: int
    width: int
    full: int  # number of blocks computed without the mask
    partial: int  # number of blocks computed and masked
    skipped: int  # number of blocks not computed


class Kernel(Protocol):
    """The interface of a module that can run attention calls.

    It may also have `prepare(call)`, which returns `run` for calls that differ in the numbers of q, k and v alone.
    """

    OPTIONS: frozenset[str]  # the options besides `scale` that the kernel supports; it gets no calls with other options

    def refuse(self, call: AttentionCall) -> str | None:
        """Return why this kernel cannot run the call; None if it can. All options of the call are in `OPTIONS`."""

    def cost(self, call: AttentionCall) -> Cost:
        """Estimate the cost of the call. This is only called if the kernel does not refuse the call."""

    def run(self, call: AttentionCall) -> Tensor:
        """Compute the output [B, H, Q, E], in the dtype of the query."""


def machine(call: AttentionCall) -> Machine:
    """Return the nominal speeds of the machine on which a call runs."""
    full, half = (CPU, CPU_HALF) if call.q.device.type == "cpu" else (CUDA, CUDA_HALF)
    return half if call.q.dtype.itemsize == 2 else full


def refused(template: str, **values: object) -> str:
    """Return why a kernel refuses: a `Sentence`, or a plain text while torch.compile traces, which cannot make one."""
    return template.format(**values) if is_compiling() else Sentence(template).format(**values)


def refusal(kernel: Kernel, call: AttentionCall) -> str | None:
    """Return why a kernel cannot run a call (int8 or an option that it lacks, or its own reason); None if it can."""
    if call.k_scale is not None and not getattr(kernel, "READS_INT8", False):
        return "it does not read int8"
    unknown = call.beyond(kernel.OPTIONS)
    if unknown:
        return refused("it has no {option}", option=unknown)
    if call.softcap is not None and isinstance(call.softcap, Tensor) and not getattr(kernel, "TRAINS_SOFTCAP", False):
        return "it gives no gradient to softcap"
    return kernel.refuse(call)


def fused_inputs(call: AttentionCall) -> tuple[Tensor, Tensor, Tensor, float]:
    """Return q, k, v and the scale as fused kernels need them: D == E, by zeros that change no score, and scale > 0.

    (Causal fused kernels multiply -inf by the scale.) The output of the kernel is then as wide as the wider of k and v:
    `cut_to_values` removes the columns of the added zeros.
    """
    q, k, v, scale = call.q, call.k, call.v, call.scale
    if scale <= 0.0:
        q, scale = (-q, -scale) if scale < 0.0 else (q * 0.0, 1.0)
    d, e = k.shape[-1], v.shape[-1]
    if d < e:
        q, k = pad(q, (0, e - d)), pad(k, (0, e - d))
    elif e < d:
        v = pad(v, (0, d - e))
    return q, k, v, scale


def cut_to_values(call: AttentionCall, out: Tensor) -> Tensor:
    """Cut an output for `fused_inputs` to the width of the call's values. (A needless slice costs time in backward.)"""
    width = call.v.shape[-1]
    return out if out.shape[-1] == width else out[..., :width]


def matrix_flops(call: AttentionCall, cells: int) -> int:
    """Count the FLOPs of q kᵀ and A v over this many cells of the [B, H, Q, K] matrix: 2 · (D + E) per cell."""
    return 2 * cells * (call.q.shape[-1] + call.v.shape[-1])


def input_output_bytes(call: AttentionCall) -> int:
    """Count the bytes of q, k, v and the output."""
    return sum(x.numel() * x.element_size() for x in (call.q, call.k, call.v)) + output_bytes(call)


def output_bytes(call: AttentionCall) -> int:
    """Count the bytes of the output [B, H, Q, E]."""
    return call.q.shape[:-1].numel() * call.v.shape[-1] * call.q.element_size()
