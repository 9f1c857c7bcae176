"""What a kernel is: three functions, `refuse`, `cost` and `run`, in a module of their own."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from torch import Tensor
from torch.nn.functional import pad

from headwise.call import AttentionCall
from headwise.masks import Extent


@dataclasses.dataclass(frozen=True)
class Cost:
    """What running a call would take, forward pass. Only the ratios of `time` mean anything."""

    flops: int  # of the two matrix products: 2 · cells · (D + E)
    bytes: int  # read and written, intermediate results included
    peak: int  # bytes of memory beyond the inputs at the worst moment, the output included
    time: float  # seconds on a nominal core pair: what the plan compares
    blocks: Blocks | None = None  # None where the kernel knows no blocks


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How a kernel divides the Q × K matrix: into blocks of `height` queries × `width` keys."""

    height: int
    width: int
    full: int  # computed without looking at the mask
    partial: int  # computed and masked
    skipped: int  # not computed

    @classmethod
    def of(cls, codes: Tensor, height: int, width: int) -> Blocks:
        """Counted from the extent codes of a grid of such blocks."""
        full, partial, skipped = (int((codes == extent).sum()) for extent in (Extent.ALL, Extent.SOME, Extent.NONE))
        return cls(height, width, full, partial, skipped)


class Kernel(Protocol):
    """One way to run a call."""

    def refuse(self, call: AttentionCall) -> str | None:
        """Why this kernel cannot run this call; None if it can."""

    def cost(self, call: AttentionCall) -> Cost:
        """What it would take. Only asked of a kernel that does not refuse."""

    def run(self, call: AttentionCall) -> Tensor:
        """The output [B, H, Q, E], in the dtype of the query."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """Nominal speeds, for `Cost.time`: what kernels are compared by."""

    flops: float  # a second, in large matrix products
    bytes: float  # a second, from and to memory
    call: float  # seconds that one call into torch takes

    def time(self, flops: int, bytes_: int, *, share: float = 1.0, calls: int = 1) -> float:
        """Seconds for this work, the matrix products at a share of the full speed."""
        return flops / (share * self.flops) + bytes_ / self.bytes + calls * self.call


CPU = Machine(flops=1.6e11, bytes=1.5e10, call=15e-6)  # two cores, float32
CUDA = Machine(flops=1e14, bytes=1e12, call=10e-6)


def machine(call: AttentionCall) -> Machine:
    """The nominal machine that a call runs on."""
    return CPU if call.q.device.type == "cpu" else CUDA


def same_head_dims(call: AttentionCall, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The call's q with these k and v, zeros added until D == E, as fused kernels want it; that changes no score.

    The output is then as wide as the wider of the two: `cut_to_values` takes the zeros off.
    """
    q, d, e = call.q, k.shape[-1], v.shape[-1]
    if d < e:
        q, k = pad(q, (0, e - d)), pad(k, (0, e - d))
    elif e < d:
        v = pad(v, (0, d - e))
    return q, k, v


def cut_to_values(call: AttentionCall, out: Tensor) -> Tensor:
    """An output of `same_head_dims` as wide as the call's values; a needless slice would cost its backward a copy."""
    width = call.v.shape[-1]
    return out if out.shape[-1] == width else out[..., :width]


def matrix_flops(call: AttentionCall, cells: int) -> int:
    """FLOPs of q kᵀ and A v over this many cells of the [B, H, Q, K] matrix: 2 · (D + E) a cell."""
    return 2 * cells * (call.q.shape[-1] + call.v.shape[-1])


def input_output_bytes(call: AttentionCall) -> int:
    """Bytes of q, k, v and the output."""
    return sum(x.numel() * x.element_size() for x in (call.q, call.k, call.v)) + output_bytes(call)


def output_bytes(call: AttentionCall) -> int:
    """Bytes of the output [B, H, Q, E]."""
    return call.q.shape[:-1].numel() * call.v.shape[-1] * call.q.element_size()
