"""All statistics of a record in one pass, against one fused causal forward: torch's scaled_dot_product_attention.

    python benchmarks/record_statistics.py                   # 2,048 and 8,192 tokens, on one thread and on all
    python benchmarks/record_statistics.py --long            # 16,384 too
    python benchmarks/record_statistics.py --lengths 2048 --rounds 9 --threads 2 --json results.json

Every figure is a ratio: the contestants take turns in the same process (forward, all statistics, each one alone,
forward, ...), each round gives a ratio, and the table shows the median ratio. Below 1× is less time than the forward.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.records import AttentionRecord
from headwise.records.statistics import STATISTICS

HEADS, HEAD_DIM = 12, 64


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192])
    arguments.add_argument("--long", action="store_true", help="16,384 tokens too")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--threads", type=int, nargs="+", default=sorted({1, torch.get_num_threads()}))
    arguments.add_argument("--all-only", action="store_true", help="leave out the statistics one by one")
    arguments.add_argument("--json", help="also write the figures to this file")
    chosen = arguments.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 140)
    about = {
        "machine": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        "shape": f"B=1, H={HEADS}, D={HEAD_DIM}, float32, causal",
        "rounds": chosen.rounds,
    }
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table("length", "threads", "asked for", "statistics", "SDPA forward", "×SDPA")
    for column in table.columns[:2] + table.columns[3:]:
        column.justify = "right"
    rows = []
    for threads in chosen.threads:
        torch.set_num_threads(threads)
        for length in [*chosen.lengths, *([16384] if chosen.long else [])]:
            for row in measure(length, chosen.rounds, [] if chosen.all_only else list(STATISTICS)):
                rows.append({"length": length, "threads": threads, **row})
                table.add_row(
                    *(f"{length:,}", str(threads), row["asked"]),
                    *(f"{row['seconds']['headwise'] * 1000:,.1f} ms", f"{row['seconds']['sdpa'] * 1000:,.1f} ms"),
                    f"{row['ratio']:.2f}×",
                )
            table.add_section()
    console.print(table)
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"about": about, "rows": rows}, file, indent=1)


def measure(length: int, rounds: int, names: list[str]) -> list[dict[str, Any]]:
    """Median seconds, and the median of the rounds' ratios, of all statistics together and of each alone."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, HEAD_DIM) for _ in range(3))
    call = make_call(q, k, v, mask=masks.causal())

    def ask(*names: str) -> Callable[[], object]:
        return lambda: AttentionRecord(call).statistics(*names)  # a new record, which remembers nothing

    contestants = {"forward": lambda: scaled_dot_product_attention(q, k, v, is_causal=True), "all": ask()}
    contestants |= {name: ask(name) for name in names}
    contestants["forward"](), contestants["all"]()  # warms up
    times: dict[str, list[float]] = {who: [] for who in contestants}
    for _ in range(rounds):
        for who, run in contestants.items():
            start = time.perf_counter()
            run()
            times[who].append(time.perf_counter() - start)
    forward = times.pop("forward")
    return [
        {
            "asked": who,
            "seconds": {"headwise": statistics.median(ours), "sdpa": statistics.median(forward)},
            "ratio": statistics.median(our / their for our, their in zip(ours, forward, strict=True)),
        }
        for who, ours in times.items()
    ]


if __name__ == "__main__":
    main()
