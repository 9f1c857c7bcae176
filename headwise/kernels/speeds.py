"""The nominal speeds by which the plan compares kernels, and the names of this machine and its processor."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from pathlib import Path

import torch

from headwise.native.library import instruction_set


@dataclasses.dataclass(frozen=True)
class Machine:
    """The speeds of a machine for calls of one dtype, from which `Cost.time` is computed."""

    flops: float  # per second, of a kernel whose share is 1
    bytes: float  # per second, from and to memory
    call: float  # seconds that one call into torch takes
    product: float  # FLOP/s of a large matrix product in the dtype of the call

    def time(self, flops: int, bytes_: int, *, share: float = 1.0, calls: int = 1) -> float:
        """Return the seconds that this work takes, with the matrix products at a `share` of the full speed."""
        return flops / (share * self.flops) + bytes_ / self.bytes + calls * self.call


# Two cores with AVX-512; in half precision with AMX or AVX-512-BF16. On other machines the ratios are alike.
CPU = Machine(flops=1.6e11, bytes=1.5e10, call=15e-6, product=2.3e11)
CPU_HALF = dataclasses.replace(CPU, flops=3e11, product=4.5e11)
CUDA = Machine(flops=1e14, bytes=1e12, call=10e-6, product=1.4e14)
CUDA_HALF = dataclasses.replace(CUDA, flops=4.5e14, bytes=2e12, product=6e14)  # an H100


def name_machine() -> str:
    """Return what times depend on, as a text: processor, cores, threads, instruction set and version of torch."""
    cores, threads = os.cpu_count(), torch.get_num_threads()
    about = f"{processor()}, CPUs: {cores}, threads: {threads}, native kernels: {instruction_set() or 'none'}"
    return f"{about}, torch {torch.__version__}"


def processor() -> str:
    """Return the name of the processor."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()
