"""A step of decoding on a cache that no processor cache holds, against the bandwidth of the memory; and small calls.

    python benchmarks/decode.py                     # some minutes, and memory for four times the last-level cache
    python benchmarks/decode.py --gigabytes 1 --rounds 9

One query, 32 query heads of 128 that share 8 key heads, keys and values in float32, bfloat16 and int8 with a scale a
token and head. The bandwidth is that of torch reading float32 numbers (`x.sum()`, on all threads), in the same rounds.
SDPA gets `enable_gqa`; of int8 it gets bfloat16 keys and values, twice the bytes. Small calls: microseconds of the
smallest call, and of it with gradients, beside scaled_dot_product_attention.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise.kernels.measure import take_turns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import figures

HEADS, KEY_HEADS, WIDTH = 32, 8, 128
BYTES = {torch.float32: 4, torch.bfloat16: 2, torch.int8: 1}
PEERS = {"× SDPA": "sdpa", "× decode": "decode"}  # figures, and the contestants


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, help="of keys and values; four times the last-level cache")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    asked = parser.parse_args()
    size = asked.gigabytes * 1e9 if asked.gigabytes else 4 * last_level_cache()
    console = Console(width=None if sys.stdout.isatty() else 130)
    about = figures.about(gigabytes=round(size / 1e9, 2), rounds=asked.rounds)
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table("keys and values", "tokens", "native", "GB/s", "of the bandwidth", "× SDPA", "× `decode`")
    with torch.no_grad():
        rows = [step(dtype, size, asked.rounds) for dtype in BYTES]
    for row in rows:
        found = row["figures"]
        cells = [
            f"{found['ms'][0]:.1f} ms",
            f"{found['GB/s'][0]:.1f}",
            figures.shown(found["of the bandwidth"], "{:.0%}"),
        ]
        table.add_row(row["work"], f"{row['tokens']:,}", *cells, *(figures.shown(found[x]) for x in PEERS))
    console.print(table)
    small = Table("smallest call, µs", "headwise.attention", "SDPA")
    for gradients in (False, True):
        best = smallest(gradients)
        work = "with gradients" if gradients else "output"
        small.add_row(work, *(f"{micros:.1f}" for micros in best.values()))
        found = {name: [round(micros, 1)] for name, micros in best.items()}
        rows.append({"table": "smallest call", "work": work, "figures": found})
    console.print(small)
    if asked.json:
        figures.write(asked.json, about, rows)


def last_level_cache() -> int:
    """Bytes; of Linux."""
    found = [path.read_text() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20}
    return max((int(text.strip()[:-1]) * units[text.strip()[-1]] for text in found), default=2**25)


def step(dtype: torch.dtype, size: float, rounds: int) -> dict[str, Any]:
    """A row of figures."""
    torch.manual_seed(0)
    tokens = int(size / (2 * KEY_HEADS * WIDTH * BYTES[dtype]) / 512 + 1) * 512
    float_dtype = torch.bfloat16 if dtype == torch.int8 else dtype
    q = torch.randn(1, HEADS, 1, WIDTH, dtype=float_dtype)
    k, v = (torch.empty(1, KEY_HEADS, tokens, WIDTH, dtype=float_dtype).normal_() for _ in range(2))
    given: tuple[Any, Any] = (headwise.Int8.of(k), headwise.Int8.of(v)) if dtype == torch.int8 else (k, v)
    moved = 2 * KEY_HEADS * tokens * (WIDTH * BYTES[dtype] + (4 if dtype == torch.int8 else 0))
    numbers = torch.ones(int(size / 4))
    contestants: dict[str, Callable[[], Tensor]] = {
        "native": lambda: headwise.attention(q, *given, kernel="native"),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, enable_gqa=True),
        "decode": lambda: headwise.attention(q, k, v, kernel="decode"),
        "memory": numbers.sum,
    }
    times = take_turns(contestants, rounds)

    rate = moved / (4 * len(numbers))
    pairs = zip(times["memory"], times["native"], strict=True)
    found = {
        "ms": figures.spread(1000 * x for x in times["native"]),
        "GB/s": figures.spread(moved / x / 1e9 for x in times["native"]),
        "of the bandwidth": figures.spread(rate * memory / native for memory, native in pairs),
        **{shown: figures.ratios(times, who, "native") for shown, who in PEERS.items()},
    }
    work = str(dtype).removeprefix("torch.")
    return {"table": "decoding", "work": work, "tokens": tokens, "figures": found, "seconds": times}


def smallest(gradients: bool) -> dict[str, float]:
    """Microseconds of a call of [1, 1, 1, 8], the best of many."""
    q, k, v = (torch.randn(1, 1, 1, 8, requires_grad=gradients) for _ in range(3))
    d_out = torch.randn(1, 1, 1, 8)

    def run(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        out = attend(q, k, v)
        if gradients:
            torch.autograd.grad(out, (q, k, v), d_out)

    found = {}
    for name, attend in (("headwise", headwise.attention), ("sdpa", scaled_dot_product_attention)):
        best = float("inf")
        for _ in range(3000):
            start = time.perf_counter()
            run(attend)
            best = min(best, time.perf_counter() - start)
        found[name] = best * 1e6
    return found


if __name__ == "__main__":
    main()
