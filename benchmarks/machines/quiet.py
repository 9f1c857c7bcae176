"""Whether this machine does nothing else, so that figures measured on it are its own."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import torch

OTHERS = 0.1  # of a core, that other programs may take
SPREAD = 1.6  # nine of ten equal products take less than so many times the least (1.1 to 1.4 on idle virtual machines)


def busy() -> str | None:
    """Why figures that are measured now would say little; None on a quiet machine. Takes three seconds."""
    others = cores_in_use()
    if others > OTHERS:
        return f"other programs use {others:.1f} cores, expected at most {OTHERS}"
    spread = spread_of_products()
    if spread > SPREAD:
        return f"equal products take up to {spread:.1f} times as long as the quickest, expected at most {SPREAD}"
    return None


def wait_until_quiet(seconds: float) -> str | None:
    """Wait at most so long; the last reason, or None as soon as the machine is quiet."""
    end = time.monotonic() + seconds
    while (reason := busy()) is not None and time.monotonic() < end:
        time.sleep(3)
    return reason


def cores_in_use(seconds: float = 2.0) -> float:
    """How many cores are in use while this process sleeps, other virtual machines' share included; on Linux alone.

    Elsewhere 0: the load of the last minute would count what this program has just done, so the products must tell.
    """
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0

    def used() -> float:
        user, nice, system, _idle, _waiting, *others = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
        return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")

    before, start = used(), time.monotonic()
    time.sleep(seconds)
    return (used() - before) / (time.monotonic() - start)


def spread_of_products(number: int = 60) -> float:
    """Nine of ten products of two matrices take less than so many times the least."""
    square = torch.randn(768, 768)
    times = []
    for _ in range(number):
        start = time.perf_counter()
        square @ square
        times.append(time.perf_counter() - start)
    return statistics.quantiles(times[5:], n=10)[-1] / min(times[5:])
