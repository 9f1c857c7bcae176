"""headwise.edit on a GPT-2-shaped model: what each edit costs, against the plain run in the same rounds.

    python benchmarks/edit.py                          # 2k and 8k tokens; some minutes
    python benchmarks/edit.py --lengths 2048 --edits ablate block --rounds 9
    python benchmarks/edit.py --lengths                # only the prompt and the decoding steps of two models (steps.py)

The plain run (torch's fused attention, sdpa) and the edited run take turns in one process; the table shows the median
of the rounds' ratios. `one layer` edits one of the four: the others should cost nothing.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import headwise
from benchmarks import steps
from benchmarks.watch import HEADS, LAYERS, WIDTH, gpt2
from headwise import edits
from headwise.edits import Edit

EDITS: dict[str, Edit] = {
    "ablate": edits.ablate("*", heads=[1, 7]),
    "one layer": edits.ablate("h.1", heads=[1, 7]),
    "head_mask": edits.head_mask("*", torch.linspace(0, 1, HEADS)),
    "block": edits.block("*", queries=slice(100, None), keys=range(10, 20)),
    "block, two heads": edits.block("*", queries=slice(100, None), keys=range(10, 20), heads=[1, 7]),
    "steer": edits.steer("*", keys=range(10, 20), by=10.0),
    "temperature": edits.temperature("*", 1.5),
    "window": edits.window("*", 255, first=4),
    "topk": edits.topk("*", 64),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192])
    arguments.add_argument("--edits", nargs="+", choices=EDITS, default=[*EDITS])
    arguments.add_argument("--rounds", type=int, default=5)
    chosen = arguments.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(
        f"GPT-2, {LAYERS} layers × {HEADS} heads × {WIDTH // HEADS}, float32, B=1; {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}",
        highlight=False,
    )
    in_steps = {
        "by mask": edits.block("*", queries=slice(100, None), keys=range(10, 20)),
        "by head": edits.ablate("*", heads=[1, 3]),
    }
    contexts = {name: functools.partial(headwise.edit, edits=each) for name, each in in_steps.items()}
    console.print(steps.table_of(contexts, 2 * chosen.rounds))
    table = Table("tokens", "edit", "plain", "edited", "× plain", "kernel")
    for length in chosen.lengths:
        model, ids = gpt2(length, "sdpa"), torch.arange(length)[None] % 1000
        for name in chosen.edits:
            plain, edited, ratio, kernel = measure(model, ids, EDITS[name], chosen.rounds)
            table.add_row(f"{length:,}", name, f"{plain:.2f} s", f"{edited:.2f} s", f"{ratio:.2f}", kernel)
    console.print(table)


def measure(model: torch.nn.Module, ids: torch.Tensor, edit: Edit, rounds: int) -> tuple[float, float, float, str]:
    """(seconds of the plain and of the edited run, the median ratio, the kernel)."""

    def edited() -> None:
        with headwise.edit(model, edit):
            model(ids)

    with torch.no_grad():
        with headwise.edit(model, edit) as changed:
            kernel = changed.plan(ids).splitlines()[0].rpartition("; ")[2]
        times = [(seconds(lambda: model(ids)), seconds(edited)) for _ in range(rounds)]
    ratio = statistics.median(two / one for one, two in times)
    return statistics.median(one for one, _ in times), statistics.median(two for _, two in times), ratio, kernel


def seconds(run: Callable[[], object]) -> float:
    """How long a run takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
