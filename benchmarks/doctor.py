"""How long a diagnosis takes, by width and kind of module.

    python benchmarks/doctor.py                        # about a minute
    python benchmarks/doctor.py --widths 64 1024 --json results.json

Each module is diagnosed once to warm up and then `--rounds` times, all modules in turns; the median is shown. The
tutorial's attention has its mistake (examples/my_attention.py), so the variants that are tried for it count too. The
time of the imports is not in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import runpy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import headwise
from headwise.nn import positions

TUTORIAL = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "my_attention.py"))["MyAttention"]

MODULES: dict[str, Callable[[int], nn.Module]] = {
    "the tutorial's, with its mistake": lambda width: TUTORIAL(width, heads=8),
    "nn.MultiheadAttention": lambda width: nn.MultiheadAttention(width, 8, batch_first=True),
    "headwise, 2 key heads, RoPE": lambda width: headwise.nn.MultiHeadAttention(
        width, 8, num_kv_heads=2, positions=positions.Rope(width // 8)
    ),
    "headwise, multi-head latent": lambda width: headwise.nn.MultiHeadLatentAttention(
        width, 8, q_rank=width // 2, kv_rank=width // 4, nope_dim=width // 8, rope_dim=8, value_head_dim=width // 8
    ),
    "nn.TransformerDecoderLayer": lambda width: nn.TransformerDecoderLayer(width, 8, 2 * width, batch_first=True),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", help="also write the figures to this file")
    chosen = arguments.parse_args()

    torch.manual_seed(0)
    cases = {(name, width): make(width) for name, make in MODULES.items() for width in chosen.widths}
    for module in cases.values():
        headwise.diagnose(module)
    seconds: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(chosen.rounds):
        for case, module in cases.items():
            begun = time.perf_counter()
            headwise.diagnose(module)
            seconds[case].append(time.perf_counter() - begun)
    median = {case: statistics.median(times) for case, times in seconds.items()}

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    table = Table(title=f"Seconds a diagnosis, median of {chosen.rounds} ({machine}, torch {torch.__version__})")
    table.add_column("module")
    for width in chosen.widths:
        table.add_column(f"width {width}", justify="right")
    for name in MODULES:
        table.add_row(name, *(f"{median[name, width]:.2f}" for width in chosen.widths))
    console.print(table)
    console.print(f"longest of all: {max(max(times) for times in seconds.values()):.2f} s")
    if chosen.json:
        figures = [{"module": name, "width": width, "seconds": times} for (name, width), times in seconds.items()]
        Path(chosen.json).write_text(json.dumps({"machine": machine, "figures": figures}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
