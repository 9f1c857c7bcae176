"""What the experiments ran on."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path

import torch

import headwise


def about(seed: int) -> dict[str, str]:
    """What stands below a section: seed, date, processor, cores in use, versions."""
    return {
        "seed": str(seed),
        "date": datetime.date.today().isoformat(),
        "": f"{processor()} with {torch.get_num_threads()} of its cores in use",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "headwise": headwise.__version__,
    }


def processor() -> str:
    """The model of the processor; some virtual machines say little more than who made it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    found = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in found.items()}
    family = f" (family {names['cpu family']}, model {names['model']})" if "cpu family" in names else ""
    return names.get("model name", platform.machine()) + family
