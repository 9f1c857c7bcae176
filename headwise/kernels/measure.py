"""Measures kernels on this machine. The kernels take turns, so that other work on the machine affects all of them."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from headwise.call import AttentionCall
from headwise.kernels.kernel import Kernel, matrix_flops
from headwise.kernels.plan import KERNELS, Verdict, choose, find_name, verdicts
from headwise.language import Sentence
from headwise.masks.bits import row_blocks

# Kernels whose estimated time is more than MOST_TIME times the least, or memory more than MOST_BYTES, are not run.
MOST_TIME, MOST_BYTES = 10, 2**31
PRODUCT = 2048  # rows of the matrices that are multiplied
STEADY = 1.5  # the machine is busy if `Contest.unrest` is more
BACKWARD = 3.5  # a training step has seven matrix products where the output has two


def take_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int, *, seconds: float = math.inf, turn: float = 1e-3
) -> dict[str, list[float]]:
    """Run functions in turns (A B C, A B C, …), and return each function's seconds in each round, without first runs.

    A function that takes less than `turn` seconds runs several times in its turn, and the mean counts: otherwise the
    data that the previous function left in the caches would matter too much. After `seconds` no new round begins.
    """
    repeats = {}
    for name, run in contestants.items():
        run()
        start = time.perf_counter()
        run()
        repeats[name] = 1 + int(turn / (time.perf_counter() - start))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    end = time.perf_counter() + seconds
    for number in range(rounds):
        if number and time.perf_counter() > end:
            break
        for name, run in contestants.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                result = run()
            times[name].append((time.perf_counter() - start) / repeats[name])
            del result  # outside of the timed part
    return times


def runs(call: AttentionCall, kernel: Kernel) -> Callable[[], object]:
    """Make a function that runs the call on a kernel: forward, and also backward if the call trains."""
    d_out = torch.randn(*call.q.shape[:3], call.v.shape[3], device=call.q.device).to(call.q.dtype)

    def run() -> object:
        out = kernel.run(call)
        return torch.autograd.grad(out, (call.q, call.k, call.v), d_out) if call.trains else out

    return run


def product(dtype: torch.dtype, rows: int | None = None) -> Callable[[], object]:
    """Make a function that multiplies two square matrices of `rows` rows (None = PRODUCT): 2 · rows³ FLOPs."""
    square = torch.randn(rows or PRODUCT, rows or PRODUCT, device="cpu").to(dtype)
    return lambda: square @ square


@dataclasses.dataclass(frozen=True)
class Contest:
    """The times of one call on every kernel that can run it, and of a matrix product of its dtype."""

    chosen: str  # the plan's choice
    seconds: dict[str, list[float]]  # the seconds of each kernel in each round
    product: list[float]  # FLOP/s of the matrix product in each round
    flops: float  # the FLOPs of the call, over the cells that its mask allows
    reasons: dict[str, str]  # why other kernels were not run

    def times_chosen(self, kernel: str) -> tuple[float, float, float]:
        """Return how many times as long as the plan's choice a kernel takes: (median over rounds, minimum, maximum)."""
        ratios = [a / b for a, b in zip(self.seconds[kernel], self.seconds[self.chosen], strict=True)]
        return statistics.median(ratios), min(ratios), max(ratios)

    def unrest(self) -> float:
        """Return how many times its quickest round the median round takes, of the contestant for which this is most.

        Other work on the machine can only add to a time, and seldom adds the same to each round.
        """
        products = [1 / speed for speed in self.product]
        return max(statistics.median(each) / min(each) for each in (*self.seconds.values(), products))

    def share(self, kernel: str) -> float:
        """Return the median over the rounds of (FLOP/s of the kernel) / (FLOP/s of the matrix product)."""
        pairs = zip(self.seconds[kernel], self.product, strict=True)
        return statistics.median(self.flops / seconds / product for seconds, product in pairs)


def contest(call: AttentionCall, rounds: int) -> Contest:
    """Measure the kernels that can run the call, except those with by far too high an estimated time or memory."""
    chosen, found = find_name(choose(call)), verdicts(call)
    least = min(each.cost.time for each in found if each.cost is not None)
    reasons = {each.kernel: reason for each in found if (reason := _left_out(each, least)) and each.kernel != chosen}
    kernels = {each.kernel: runs(call, KERNELS[each.kernel]) for each in found if each.kernel not in reasons}
    rows = _rows(call.q.dtype)
    times = take_turns({**kernels, "product": product(call.q.dtype, rows)}, rounds)
    speed = [2.0 * rows**3 / seconds for seconds in times.pop("product")]
    return Contest(chosen, times, speed, count_flops(call), reasons)


def _left_out(verdict: Verdict, least: float) -> str | None:
    if verdict.cost is None:
        return Sentence("refuses: {refusal}").format(refusal=verdict.refusal)
    if verdict.cost.time > MOST_TIME * least:
        return f"not run: it should take {verdict.cost.time / least:.0f} times as long as the quickest"
    if verdict.cost.peak > MOST_BYTES:
        return f"not run: it needs {verdict.cost.peak / 1e9:.1f} GB"
    return None


def count_flops(call: AttentionCall) -> float:
    """Count the FLOPs of the matrix products over allowed cells; forward and backward if the call trains."""
    batch, heads, q_len, k_len = call.shape
    cells = math.prod(call.shape)
    if call.mask is not None:
        cells = 0
        q, k = (torch.arange(n, device=call.q.device) for n in (q_len, k_len))
        for rows in row_blocks((1, 1, q_len, k_len), 2**24):
            allowed = call.mask.cells(q[rows], k)
            cells += int(allowed.sum()) * (batch * heads // allowed.shape[:2].numel())
    return matrix_flops(call, cells) * (BACKWARD if call.trains else 1.0)


def _rows(dtype: torch.dtype) -> int:
    """Return how many rows the multiplied matrices have: PRODUCT, or fewer if torch multiplies this dtype slowly."""
    rows = min(256, PRODUCT)
    while rows < PRODUCT and min(take_turns({"product": product(dtype, rows)}, 3)["product"]) < 0.02:
        rows *= 2
    return rows
