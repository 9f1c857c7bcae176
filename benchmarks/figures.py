"""What benchmarks print and write. The JSON of those that scripts/bench runs has one shape:

    {"about": {"machine": …, "instruction set": …, "date": …, "torch": …, "headwise": …, …},
     "rows": [{"table": …, "work": …, "figures": {name: [median, least, greatest]}, …}]}

`about` says where and when, "table" and "work" name a row, and figures are over the rounds: what has no rounds is one
number in its list. A benchmark may add keys.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import headwise
from benchmarks.results.machine import processor
from headwise.files import replacing
from headwise.native.library import instruction_set

# What holds torch (its own kernels, MKL, oneDNN, which OpenVINO uses too) and CTranslate2 to an instruction set.
HOLDING = ("ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "CT2_FORCE_CPU_ISA")
Times = Mapping[str, Sequence[float]]  # the seconds of each contestant in each round


def about(**more: Any) -> dict[str, Any]:
    """Where and when figures are measured."""
    return {
        "machine": f"{processor()}, {torch.get_num_threads()} threads",
        "instruction set": instruction_set(),
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        **({"held": held} if (held := [name for name in HOLDING if name in os.environ]) else {}),
        **more,
    }


def spread(values: Iterable[float]) -> list[float]:
    """[median, least, greatest], to four digits."""
    found = list(values)
    return [float(f"{x:.4g}") for x in (statistics.median(found), min(found), max(found))]


def ratios(times: Times, theirs: str, ours: str) -> list[float]:
    """The spread of (seconds of `theirs`) / (seconds of `ours`) over the rounds."""
    return spread(a / b for a, b in zip(times[theirs], times[ours], strict=True))


def shown(figure: Sequence[float] | None, form: str = "{:.2f}") -> str:
    """`1.14 (1.11–1.17)`; a dash where there is no figure."""
    if figure is None:
        return "–"
    middle, low, high = (form.format(x) for x in figure)
    return f"{middle} ({low}–{high})"


def write(path: Path, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a file of figures in place of an older one, at once; a line for each row."""
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    top = json.dumps(about, indent=1, ensure_ascii=False).replace("\n", "\n ")
    with replacing(path) as part:
        part.write_text(f'{{\n "about": {top},\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
