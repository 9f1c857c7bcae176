"""How long a diagnosis takes over many modules: the bugs of `wild/open` with their twins, and files of `blind`.

    python benchmarks/doctor_speed.py                  # some minutes
    python benchmarks/doctor_speed.py --slowest 20

Seconds of the processor, not of the clock, so that other work on the machine counts little; one thread, each module
once. The time of the imports is not in it. For one module by width: `benchmarks/doctor.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import runpy
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import headwise
from headwise.doctor.targets.guessing import guessing
from headwise.doctor.targets.load import parse
from headwise.errors import DoctorError

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "benchmarks" / folder) for folder in ("wild", "blind", "")]
Made = tuple[str, Callable[[], nn.Module], Any]  # a name, how it is made, an example of a call


def wild() -> Iterator[Made]:
    """Both modules of each case of `wild/open`."""
    for case in runpy.run_path(str(ROOT / "benchmarks" / "wild" / "__main__.py"))["cases"]([]):
        if case.half == "open":
            module = case.module
            for which in ("broken", "fixed"):
                example = module.example() if hasattr(module, "example") else None
                yield f"{case.name}, {which}", getattr(module, which), example


def blind() -> Iterator[Made]:
    """Those files of `blind/usual_*` that lie there to be read."""
    here = ROOT / "benchmarks" / "blind"
    for case in runpy.run_path(str(here / "__main__.py"))["cases"](here, [], []):
        if case.path.is_file() and case.set.startswith("usual_"):
            with contextlib.suppress(DoctorError):  # an argument that cannot be guessed
                target = guessing(parse(case.target))
                target.build()
                yield f"{case.set}/{case.path.name}", target.build, None


def seconds(make: Callable[[], nn.Module], example: Any) -> float:
    """Of the processor, for a diagnosis."""
    torch.manual_seed(0)
    module = make()
    begun = time.process_time()
    headwise.diagnose(module, example=example)
    return time.process_time() - begun


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--slowest", type=int, default=5, help="also list this many modules")
    chosen = arguments.parse_args()

    torch.set_num_threads(1)
    headwise.diagnose(nn.MultiheadAttention(16, 2, batch_first=True))  # what is done once in a process
    table = Table(title="Processor seconds a diagnosis")
    table.add_column("modules")
    for column in ("number", "median", "p90", "max", "sum"):
        table.add_column(column, justify="right")
    found: list[tuple[float, str]] = []
    for name, group in (("wild/open", wild), ("blind", blind)):
        taken = sorted((seconds(make, example), each) for each, make, example in group())
        times = [x for x, _ in taken]
        p90 = statistics.quantiles(times, n=10)[-1]
        row = [f"{x:.2f}" for x in (statistics.median(times), p90, times[-1], sum(times))]
        table.add_row(name, str(len(times)), *row)
        found += taken
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(table)
    for taken, each in sorted(found, reverse=True)[: chosen.slowest]:
        console.print(f"{taken:.2f}  {each}")


if __name__ == "__main__":
    main()
