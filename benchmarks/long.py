"""What long sequences and sparse masks cost: time and memory a token, and time against the share of blocks.

    python benchmarks/long.py                              # some minutes
    python benchmarks/long.py --lengths 4096 65536

A causal window of 256 from 4,096 to 262,144 tokens: time and memory a token, which should stay the same. The memory is
what the process needs at most beyond q, k and v, each length in a process of its own. Then random blocks of 64 × 64 at
several densities: time against (blocks that are computed ÷ all blocks) × the time without a mask, in the same rounds.
12 heads of 64, the forward pass by the native kernel.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys

import torch
from rich.console import Console
from rich.table import Table

import headwise
from headwise import masks
from headwise.kernels.measure import take_turns

HEADS, WIDTH, BLOCK = 12, 64, 64
DENSITIES = (0.03, 0.06, 0.12, 0.25, 0.4, 0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=[4096, 16384, 65536, 262144])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)  # this length, in this process
    asked = parser.parse_args()
    if asked.alone:
        print(*window(asked.alone, asked.dtype, asked.rounds))
        return
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("tokens, window 256", "forward", "a token", "memory beyond q, k, v", "a token")
    for length in asked.lengths:
        command = [sys.executable, __file__, "--alone", str(length), "--dtype", asked.dtype]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds, memory = map(float, done.stdout.split())
        each = f"{seconds / length * 1e6:.2f} µs", f"{memory / 2**20:,.0f} MiB", f"{memory / length / 1024:.1f} KiB"
        table.add_row(f"{length:,}", f"{seconds * 1000:,.1f} ms", *each)
    console.print(table)
    console.print(densities(asked.dtype, asked.rounds))


def window(length: int, dtype: str, rounds: int) -> tuple[float, float]:
    """Seconds, and bytes at the peak beyond the inputs."""
    q, k, v = (torch.randn(1, HEADS, length, WIDTH).to(getattr(torch, dtype)) for _ in range(3))
    warm = torch.randn(1, 1, 8, WIDTH)
    headwise.attention(warm, warm, warm, kernel="native", mask=masks.window(255, 0))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with torch.no_grad():
        times = take_turns({"": lambda: headwise.attention(q, k, v, mask=masks.window(255, 0))}, rounds)
    return statistics.median(times[""]), 1024.0 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def densities(dtype: str, rounds: int, length: int = 4096) -> Table:
    """Random blocks, each density against the share of it of a call without a mask."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH).to(getattr(torch, dtype)) for _ in range(3))
    table = Table(f"blocks that are seen, of {length:,} tokens", "forward", "÷ (share × dense)")
    for density in DENSITIES:
        layout = torch.rand(length // BLOCK, length // BLOCK) < density
        layout[torch.arange(len(layout)), torch.arange(len(layout))] = True
        mask = masks.block_sparse(layout, BLOCK)
        runs = {
            "sparse": lambda mask=mask: headwise.attention(q, k, v, mask=mask, kernel="native"),
            "dense": lambda: headwise.attention(q, k, v, kernel="native"),
        }
        with torch.no_grad():
            times = take_turns(runs, rounds)
        share = layout.float().mean().item()
        ratios = [a / (share * b) for a, b in zip(times["sparse"], times["dense"], strict=True)]
        shown = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        table.add_row(f"{share:.1%}", f"{statistics.median(times['sparse']) * 1000:.1f} ms", shown)
    return table


if __name__ == "__main__":
    main()
