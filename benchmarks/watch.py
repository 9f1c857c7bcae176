"""headwise.watch on a GPT-2-shaped model: its cost in time and memory, and the cost of asking for every statistic.

    python benchmarks/watch.py                       # 2k, 8k and 16k tokens; some minutes
    python benchmarks/watch.py --long                # and 64k
    python benchmarks/watch.py --lengths 2048 --rounds 9 --json results.json
    python benchmarks/watch.py --lengths             # only the prompt and the decoding steps of two models (steps.py)

Time: the plain run and the watched run take turns in one process; the table shows the median of the rounds' ratios.
Peak memory: each way runs once in a process of its own, and what it adds to the memory of the loaded model is shown;
`statistics` is the watch with statistics=["entropy", "lse", "received"], keep=False; `eager` is the model with
attn_implementation="eager" and output_attentions=True, where that fits into the memory there is. All statistics:
`record.statistics()` of one layer against one fused causal forward of the same queries and keys, in turns too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

import headwise
from benchmarks import steps

LAYERS, HEADS, WIDTH = 4, 12, 768
WAYS = ("plain", "watch", "statistics", "eager")
STATISTICS: dict[str, Any] = {"statistics": ["entropy", "lse", "received"], "keep": False}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192, 16384])
    arguments.add_argument("--long", action="store_true", help="also 65,536 tokens")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--json", help="also write the figures to this file")
    arguments.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)  # what the processes are started with
    chosen = arguments.parse_args()
    if chosen.memory_of:
        print(json.dumps(memory_here(chosen.memory_of, chosen.lengths[0])))
        return

    console = Console(width=None if sys.stdout.isatty() else 140)
    about = {
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        "model": f"GPT-2, {LAYERS} layers × {HEADS} heads × {WIDTH // HEADS}, float32, B=1",
        "rounds": chosen.rounds,
    }
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table(
        "tokens",
        "plain",
        "watched",
        "×plain",
        "statistics",
        "×plain",
        "+plain",
        "+watched",
        "+statistics",
        "+eager",
        "one fused causal",
        "all statistics",
        "×fused",
    )
    for column in table.columns:
        column.justify = "right"
    rows = []
    for length in [*chosen.lengths, *([65536] if chosen.long else [])]:
        row = {"tokens": length, **measure_time(length, chosen.rounds), **measure_statistics(length, chosen.rounds)}
        row["memory"] = {way: measure_memory(way, length) for way in WAYS}
        rows.append(row)
        table.add_row(*show(row))
    console.print(steps.table_of({"watch": headwise.watch}, 2 * chosen.rounds))
    console.print(table)
    console.print(
        "Peak memory (+) is what the run added to the loaded model; – where it does not fit.", highlight=False
    )
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"about": about, "rows": rows}, file, indent=1)


def gpt2(length: int, implementation: str) -> torch.nn.Module:
    """A model of GPT-2's shape with random weights, without the vocabulary's projection."""
    from transformers import GPT2Config, GPT2Model
    from transformers.utils import logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=1000, n_positions=length, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, use_cache=False,
        bos_token_id=0, eos_token_id=0, attn_implementation=implementation,
    )  # fmt: skip
    return GPT2Model(config).eval()


def measure_time(length: int, rounds: int) -> dict[str, Any]:
    """Median seconds of the plain and of the watched runs, and the median of the rounds' ratios."""
    model, ids = gpt2(length, "sdpa"), torch.arange(length)[None] % 1000

    def plain() -> None:
        model(ids)

    def watched() -> None:
        with headwise.watch(model):
            model(ids)

    def computed() -> None:
        with headwise.watch(model, **STATISTICS):
            model(ids)

    with torch.no_grad():
        found = compare("plain", plain, "watched", watched, rounds)
        alone = compare("plain", plain, "computed", computed, rounds)
    return {**found, "computed": alone["computed"], "computed_ratio": alone["ratio"]}


def measure_statistics(length: int, rounds: int) -> dict[str, Any]:
    """Median seconds of one fused causal forward and of one pass for all statistics of a record of that call."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, length, WIDTH // HEADS) for _ in range(3))

    def fused() -> None:
        scaled_dot_product_attention(q, k, v, is_causal=True)

    def all_statistics() -> None:
        _, record = headwise.attention(q, k, v, mask=mask, record=True)
        start = time.perf_counter()
        record.statistics()
        spent.append(time.perf_counter() - start)

    spent: list[float] = []
    mask = headwise.masks.causal()
    with torch.no_grad():
        found = compare("fused", fused, "statistics", all_statistics, rounds, spent)
    return {"fused": found["fused"], "statistics": found["statistics"], "statistics_ratio": found["ratio"]}


def compare(
    one: str,
    first: Callable[[], None],
    two: str,
    second: Callable[[], None],
    rounds: int,
    spent: list[float] | None = None,
) -> dict[str, Any]:
    """Both in turns. `spent`: what the second says that it took, where not all of it counts."""
    first(), second()
    times: dict[str, list[float]] = {one: [], two: []}
    for _ in range(rounds):
        for name, run in ((one, first), (two, second)):
            start = time.perf_counter()
            run()
            took = time.perf_counter() - start
            times[name].append(spent[-1] if spent and name == two else took)
    ratio = statistics.median(b / a for a, b in zip(times[one], times[two], strict=True))
    return {one: statistics.median(times[one]), two: statistics.median(times[two]), "ratio": ratio}


def measure_memory(way: str, length: int) -> int | None:
    """Bytes that a run adds to a process with the loaded model; None if it does not fit, or this is not Linux."""
    if not Path("/proc/self/clear_refs").exists():
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if way == "eager" and (LAYERS + 3) * HEADS * length**2 * 4 > total:
        return None
    command = [sys.executable, __file__, "--memory-of", way, "--lengths", str(length)]
    done = subprocess.run(command, capture_output=True, text=True)
    return int(json.loads(done.stdout)) if done.returncode == 0 else None


def memory_here(way: str, length: int) -> int:
    """The peak of this process above what it had with the loaded model."""
    model, ids = gpt2(length, "eager" if way == "eager" else "sdpa"), torch.arange(length)[None] % 1000
    with torch.no_grad():
        model(ids[:, :16])
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident("VmRSS")
        if way in ("watch", "statistics"):
            with headwise.watch(model, **(STATISTICS if way == "statistics" else {})) as seen:
                model(ids)
            assert len(seen) == LAYERS
        else:
            out = model(ids, output_attentions=way == "eager")
            assert way != "eager" or len(out.attentions) == LAYERS
    return resident("VmHWM") - before


def resident(which: str) -> int:
    """Bytes of this process's memory: VmRSS now, VmHWM at the peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(which))
    return int(line.split()[1]) * 1024


def show(row: dict[str, Any]) -> list[str]:
    memory = {way: "–" if size is None else f"{size / 2**20:,.0f} MiB" for way, size in row["memory"].items()}
    return [
        f"{row['tokens']:,}",
        f"{row['plain'] * 1000:,.0f} ms",
        f"{row['watched'] * 1000:,.0f} ms",
        f"{row['ratio']:.3f}×",
        f"{row['computed'] * 1000:,.0f} ms",
        f"{row['computed_ratio']:.3f}×",
        *memory.values(),
        f"{row['fused'] * 1000:,.0f} ms",
        f"{row['statistics'] * 1000:,.0f} ms",
        f"{row['statistics_ratio']:.2f}×",
    ]


if __name__ == "__main__":
    main()
