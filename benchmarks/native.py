"""headwise's native CPU kernels against scaled_dot_product_attention, compiled FlexAttention and the torch kernels.

    python benchmarks/native.py                     # all of it; about ten minutes
    python benchmarks/native.py --cases dense --dtypes bfloat16 --lengths 2048 --rounds 9
    HEADWISE_NATIVE=avx2 python benchmarks/native.py --no-flex --json results.json

The contestants take turns in one process (A B C, A B C, ...). Each round gives a ratio; the table shows the median and,
in brackets, the least and the greatest. Above 1× the native kernel is faster. A matrix product takes its turn in each
round, in the dtype or in float32, whichever is quicker: "of the product" is the share of its FLOP/s that the native
kernel reaches, counting only cells that the mask allows. SDPA is told "causal" where the mask is that, and gets a dense
mask otherwise: for ALiBi the bias, made before. "lse, entropy" and "and received" (what each key gets) are these
statistics alone, without the output, "all statistics" those of `record.statistics()`: "× forward" is the time over that
of the native output. headwise's torch kernel is `tiled`, or the statistics by tiles.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise import masks
from headwise.kernels import sdpa
from headwise.kernels.measure import take_turns
from headwise.native.library import instruction_set
from headwise.nn import positions
from headwise.records.statistics import STATISTICS, make
from headwise.records.statistics.compute import by_native, by_tiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import figures
from benchmarks.attention import compiled_flex

HEADS, HEAD_DIM, PRODUCT = 12, 64, 2048

CASES: dict[str, Callable[[int], masks.Mask | None]] = {
    "dense": lambda n: None,
    "causal": lambda n: masks.causal(),
    "ALiBi, causal": lambda n: masks.causal(),
    "causal window 256": lambda n: masks.window(255, 0),
    "packed, 512 each": lambda n: masks.documents(torch.arange(n) // 512),
    "packed, causal": lambda n: masks.documents(torch.arange(n) // 512) & masks.causal(),
    "prefix-LM, half": lambda n: masks.prefix(n // 2),
    "BigBird, 64": lambda n: masks.big_bird(n, block_size=64),
}
STATISTICS_OF = {
    "lse, entropy": ("lse", "entropy"),
    "and received": ("lse", "entropy", "received"),
    "all statistics": tuple(STATISTICS),
}
PASSES = ("forward", "forward + backward", *STATISTICS_OF)
OF_PRODUCT = "of the product"
PEERS = {"× SDPA": "sdpa", "× torch kernel": "torch", "× FlexAttention": "flex"}  # figures, and the contestants
FIGURES = (OF_PRODUCT, "× forward", *PEERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--dtypes", nargs="+", choices=["float32", "bfloat16", "float16"], default=["float32", "bfloat16"]
    )
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES[:2]))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=math.inf, help="of a row: after them no new round begins")
    parser.add_argument("--no-flex", action="store_true", help="leave out FlexAttention, which takes long to compile")
    parser.add_argument("--json", type=Path, help="also write the figures to this file, row by row")
    asked = parser.parse_args()
    if instruction_set() is None:
        parser.error("the native kernels are not here: headwise was installed without a C++ compiler")
    console = Console(width=None if sys.stdout.isatty() else 150)
    about = figures.about(shape=f"B=1, H={HEADS}, D={HEAD_DIM}", rounds=asked.rounds)
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table("work", "native", *FIGURES)
    rows = []
    for name, length, dtype, what in itertools.product(asked.cases, asked.lengths, asked.dtypes, asked.passes):
        row = measure(name, length, getattr(torch, dtype), what, asked.rounds, asked.seconds, flex=not asked.no_flex)
        rows.append(row)
        found = row["figures"]
        cells = [figures.shown(found.get(each), "{:.0%}" if each == OF_PRODUCT else "{:.2f}") for each in FIGURES]
        table.add_row(row["work"], f"{found['ms'][0]:,.1f} ms", *cells)
        if asked.json:
            figures.write(asked.json, about, rows)
    console.print(table)


def measure(
    name: str, length: int, dtype: torch.dtype, what: str, rounds: int, seconds: float, *, flex: bool
) -> dict[str, Any]:
    """A row of figures, with the seconds of each contestant in each round."""
    torch.manual_seed(0)
    backward = what == "forward + backward"
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM, dtype=dtype, requires_grad=backward) for _ in range(3))
    d_out = torch.randn(q.shape, dtype=dtype)
    mask = CASES[name](length)
    options: dict[str, Any] = {"mask": mask}
    dense = None if mask is None or name == "causal" else mask.to_bool(length)
    if name.startswith("ALiBi"):
        options["slopes"] = positions.Alibi(HEADS).slopes
        call = headwise.call.make_call(q, k, v, **options)
        dense = sdpa.dense_mask(call).to(dtype)
    square = torch.randn(PRODUCT, PRODUCT, dtype=yardstick(dtype))

    call = headwise.call.make_call(q, k, v, **options)
    asked = make(STATISTICS_OF.get(what, ()), {})

    def plain() -> Tensor:
        return headwise.attention(q, k, v, **options, kernel="native")

    contestants: dict[str, Callable[[], Tensor]] = {
        "native": lambda: by_native(call, asked)["entropy"] if asked else plain(),
        **({"forward": plain} if asked else {}),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense, is_causal=name == "causal"),
    }
    if asked:
        contestants["torch"] = lambda: by_tiles(call, asked)["entropy"]
    elif dense is not None:
        contestants["torch"] = lambda: headwise.attention(q, k, v, **options, kernel="tiled")
    if flex and mask is not None and "slopes" not in options and not backward and dtype == torch.float32:
        contestants["flex"] = compiled_flex(q, k, v, mask)

    def once(run: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(run(), (q, k, v), d_out) if backward else run()

    with torch.set_grad_enabled(backward):
        runs = {who: once(run) for who, run in contestants.items()}
        runs["product"] = lambda: square @ square
        times = take_turns(runs, rounds, seconds=seconds, turn=0.02)  # short calls: many, warm
    cells = length * length if mask is None else int(mask.to_bool(length).sum())
    products = 7 if backward else 1 if asked else 2
    flops = products * 2 * HEADS * HEAD_DIM * cells
    found = {"ms": figures.spread(1000 * x for x in times["native"])}
    share = flops / (2 * PRODUCT**3)
    found[OF_PRODUCT] = figures.spread(
        share * product / ours for product, ours in zip(times["product"], times["native"], strict=True)
    )
    if asked:
        found["× forward"] = figures.ratios(times, "native", "forward")
    found |= {shown: figures.ratios(times, who, "native") for shown, who in PEERS.items() if who in times}
    return {
        "table": "statistics" if asked else "attention",
        "work": f"{name}, {length:,} tokens, {str(dtype).removeprefix('torch.')}, {what}",
        "figures": found,
        "yardstick": str(square.dtype).removeprefix("torch."),
        "seconds": times,
    }


@functools.cache
def yardstick(dtype: torch.dtype) -> torch.dtype:
    """The dtype whose products by torch are quicker, this one or float32: without instructions for bfloat16 torch takes
    minutes for one of them, and it would measure nothing.
    """

    def seconds(dtype: torch.dtype) -> float:
        square = torch.randn(256, 256, dtype=dtype)
        return min(take_turns({"": lambda: square @ square}, 5)[""])

    return dtype if dtype == torch.float32 or seconds(dtype) < seconds(torch.float32) else torch.float32


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    main()
