"""headwise's native CPU kernels against scaled_dot_product_attention, compiled FlexAttention and the torch kernels.

    python benchmarks/native.py                     # all of it; about ten minutes
    python benchmarks/native.py --cases dense --dtypes bfloat16 --lengths 2048 --rounds 9
    HEADWISE_NATIVE=avx2 python benchmarks/native.py --no-flex --json results.json

The contestants take turns in one process (A B C, A B C, ...). Each round gives a ratio; the table shows the median and,
in brackets, the least and the greatest. Above 1× the native kernel is faster. A matrix product of the same dtype takes
its turn in each round: "of the product" is the share of its FLOP/s that the native kernel reaches, counting only cells
that the mask allows. SDPA is told "causal" where the mask is that, and gets a dense mask otherwise: for
ALiBi the bias, made before. "With statistics" is the output with log-sum-exp, entropy, distance, the largest weight and
that on the first key; "and received" adds what each key gets; "lse, entropy" are these two without the output, "all
statistics" those of `record.statistics()`. "Of forward" is the time over that of the native output alone. headwise's
torch kernel is `tiled`, or the statistics by tiles.
"""

from __future__ import annotations

import argparse
import json
import statistics
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
from headwise.kernels.speeds import processor
from headwise.native.library import instruction_set
from headwise.nn import positions
from headwise.records.statistics import STATISTICS, make
from headwise.records.statistics.compute import by_native, by_tiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
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
BESIDE = ("lse", "entropy", "distance", "top", "first_visible")
# The statistics of each pass, and whether the output is computed too.
STATISTICS_OF = {
    "with statistics": (BESIDE, True),
    "and received": ((*BESIDE, "received"), True),
    "lse, entropy": (("lse", "entropy"), False),
    "all statistics": (tuple(STATISTICS), False),
}
PASSES = ("forward", "forward + backward", *STATISTICS_OF)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument(
        "--dtypes", nargs="+", choices=["float32", "bfloat16", "float16"], default=["float32", "bfloat16"]
    )
    parser.add_argument("--passes", nargs="+", choices=PASSES, default=list(PASSES[:2]))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-flex", action="store_true", help="leave out FlexAttention, which takes long to compile")
    parser.add_argument("--json", help="also write the figures to this file")
    asked = parser.parse_args()
    if instruction_set() is None:
        parser.error("the native kernels are not here: headwise was installed without a C++ compiler")
    console = Console(width=None if sys.stdout.isatty() else 150)
    about = {
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "instruction set": instruction_set(),
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        "shape": f"B=1, H={HEADS}, D={HEAD_DIM}",
        "rounds": asked.rounds,
    }
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table(
        "mask",
        "length",
        "dtype",
        "pass",
        "native",
        "of the product",
        "of forward",
        "× SDPA",
        "× torch kernel",
        "× Flex",
    )
    rows = []
    for name in asked.cases:
        for length in asked.lengths:
            for dtype in asked.dtypes:
                for what in asked.passes:
                    row = measure(name, length, getattr(torch, dtype), what, asked.rounds, flex=not asked.no_flex)
                    rows.append(row)
                    table.add_row(*_shown(row))
    console.print(table)
    if asked.json:
        Path(asked.json).write_text(json.dumps({"about": about, "rows": rows}, indent=1), encoding="utf-8")


def measure(name: str, length: int, dtype: torch.dtype, what: str, rounds: int, *, flex: bool) -> dict[str, Any]:
    """Seconds of each contestant in each round."""
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
    square = torch.randn(PRODUCT, PRODUCT, dtype=dtype)

    call = headwise.call.make_call(q, k, v, **options)
    names, with_output = STATISTICS_OF.get(what, ((), True))
    asked = make(names, {"top": 1} if with_output else {})

    def plain() -> Tensor:
        return headwise.attention(q, k, v, **options, kernel="native")

    def ours() -> Tensor:
        return by_native(call, asked, torch.empty_like(q) if with_output else None)["entropy"] if names else plain()

    contestants: dict[str, Callable[[], Tensor]] = {
        "native": ours,
        **({"forward": plain} if names else {}),
        "sdpa": lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense, is_causal=name == "causal"),
    }
    if names:
        contestants["torch"] = lambda: by_tiles(call, asked)["entropy"]
    elif dense is not None:
        contestants["torch"] = lambda: headwise.attention(q, k, v, **options, kernel="tiled")
    if flex and mask is not None and "slopes" not in options and not backward and dtype == torch.float32:
        contestants["flex"] = compiled_flex(q, k, v, mask)

    def once(run: Callable[[], Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(run(), (q, k, v), d_out) if backward else run()

    with torch.set_grad_enabled(backward):
        runs = {who: once(run) for who, run in contestants.items()}
        times = take_turns({**runs, "product": lambda: square @ square}, rounds, turn=0.02)  # short calls: many, warm
    cells = length * length if mask is None else int(mask.to_bool(length).sum())
    products = 7 if backward else 2 if with_output else 1
    flops = products * 2 * HEADS * HEAD_DIM * cells
    return {
        "mask": name,
        "length": length,
        "dtype": str(dtype).removeprefix("torch."),
        "pass": what,
        "flops": flops,
        "seconds": times,
    }


def _shown(row: dict[str, Any]) -> list[str]:
    times = row["seconds"]
    speed = [2 * PRODUCT**3 / seconds for seconds in times["product"]]
    shares = [row["flops"] / ours / product for ours, product in zip(times["native"], speed, strict=True)]
    cells = [f"{statistics.median(times['native']) * 1000:,.1f} ms", f"{statistics.median(shares):.0%}"]
    for who in ("forward", "sdpa", "torch", "flex"):
        ratios = [theirs / ours for theirs, ours in zip(times.get(who, ()), times["native"], strict=False)]
        ratios = [1 / ratio for ratio in ratios] if who == "forward" else ratios
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "–")
    return [row["mask"], f"{row['length']:,}", row["dtype"], row["pass"], *cells]


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    main()
