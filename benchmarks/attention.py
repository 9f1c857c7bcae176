"""headwise.attention against scaled_dot_product_attention with the same mask, dense, and compiled FlexAttention.

    python benchmarks/attention.py                    # all of it; some minutes, most of them FlexAttention compiling
    python benchmarks/attention.py --lengths 2048 --rounds 5 --no-flex
    python benchmarks/attention.py --json results.json
    python benchmarks/attention.py --device cuda --dtype bfloat16

Every figure is a ratio: the contestants take turns in the same process (A B C, A B C, ...), each round gives a ratio,
and the table shows the median ratio. Above 1× headwise is faster. FlexAttention has no backward on the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import headwise
from headwise import masks
from headwise.kernels.measure import take_turns
from headwise.kernels.speeds import processor

HEADS, HEAD_DIM = 12, 64
REPEATS = 20  # on a GPU

CASES: dict[str, Callable[[int], masks.Mask | None]] = {
    "dense": lambda n: None,
    "causal window 256": lambda n: masks.causal() & masks.window(256, 0),
    "packed, 512 each": lambda n: masks.documents(torch.arange(n) // 512),
    "packed, causal": lambda n: masks.documents(torch.arange(n) // 512) & masks.causal(),
    "prefix-LM, half": lambda n: masks.prefix(n // 2),
    "BigBird, 64": lambda n: masks.big_bird(n, block_size=64),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--lengths", type=int, nargs="+", default=[2048, 8192, 16384])
    arguments.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    arguments.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments.add_argument(
        "--no-flex", action="store_true", help="leave out FlexAttention, which takes long to compile"
    )
    arguments.add_argument("--no-backward", action="store_true")
    arguments.add_argument("--json", help="also write the figures to this file")
    chosen = arguments.parse_args()
    device, dtype = torch.device(chosen.device), getattr(torch, chosen.dtype)

    console = Console(width=None if sys.stdout.isatty() else 140)
    about = {
        "machine": torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"{processor()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        "shape": f"B=1, H={HEADS}, D={HEAD_DIM}, {chosen.dtype}",
        "rounds": chosen.rounds,
    }
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    table = Table("mask", "length", "pass", "kernel", "headwise", "SDPA, same mask", "Flex, compiled", "×SDPA", "×Flex")
    for column in table.columns[1:2] + table.columns[4:]:
        column.justify = "right"
    rows = []
    for name in chosen.cases:
        for length in chosen.lengths:
            for backward in [False] if chosen.no_backward else [False, True]:
                flex = not (chosen.no_flex or name == "dense" or (backward and device.type == "cpu"))
                what = "training" if backward else "forward"
                if console.is_terminal:
                    console.print(f"[dim]{name}, {length}, {what} …[/dim]", end="\r")
                row = measure(name, length, dtype, device, chosen.rounds, backward=backward, flex=flex)
                rows.append(row)
                table.add_row(*show(row))
    console.print(table)
    record = measure_record(dtype, device, chosen.rounds)
    console.print(f"attention(..., record=True) takes {record:.3f}× the time of record=False (dense, 2048)")
    if chosen.json:
        with open(chosen.json, "w", encoding="utf-8") as file:
            json.dump({"about": about, "rows": rows, "record_ratio": record}, file, indent=1)


def measure(
    name: str, length: int, dtype: torch.dtype, device: torch.device, rounds: int, *, backward: bool, flex: bool
) -> dict[str, Any]:
    """Median seconds of each contestant and the median of the rounds' ratios."""
    torch.manual_seed(0)
    shape = (1, HEADS, length, HEAD_DIM)
    q, k, v = (torch.randn(shape, dtype=dtype, device=device, requires_grad=backward) for _ in range(3))
    d_out = torch.randn_like(q)
    mask = CASES[name](length)
    mask = mask if mask is None else mask.to(device)
    dense = None if mask is None else mask.to_bool(length).to(device)

    def ours() -> Tensor:
        return headwise.attention(q, k, v, mask=mask)

    def sdpa() -> Tensor:
        return scaled_dot_product_attention(q, k, v, attn_mask=dense)

    contestants = {"headwise": ours, "sdpa": sdpa}
    if flex:
        contestants["flex"] = compiled_flex(q, k, v, mask)

    def once(run: Callable[[], Tensor]) -> Callable[[], object]:
        return finished(device, lambda: torch.autograd.grad(run(), (q, k, v), d_out) if backward else run())

    with torch.set_grad_enabled(backward):
        outputs = {who: run() for who, run in contestants.items()}  # which should agree
        for who, out in outputs.items():
            torch.testing.assert_close(
                out, outputs["sdpa"], rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-4, msg=who
            )
        del outputs
        times = take_turns({who: once(run) for who, run in contestants.items()}, rounds)
    share = 1 if device.type == "cpu" else REPEATS
    ratios = {
        who: statistics.median(theirs / our for theirs, our in zip(times[who], times["headwise"], strict=True))
        for who in contestants
    }
    return {
        "mask": name,
        "length": length,
        "pass": "forward+backward" if backward else "forward",
        "kernel": headwise.plan(q, k, v, mask=mask).kernel,
        "seconds": {who: statistics.median(values) / share for who, values in times.items()},
        "ratio": {who: ratio for who, ratio in ratios.items() if who != "headwise"},
    }


def finished(device: torch.device, run: Callable[[], object]) -> Callable[[], object]:
    """On a GPU `run` only asks for the work: so `REPEATS` of it, and a wait for all."""
    if device.type == "cpu":
        return run

    def waited() -> object:
        for _ in range(REPEATS):
            out = run()
        torch.cuda.synchronize()
        return out

    return waited


def compiled_flex(q: Tensor, k: Tensor, v: Tensor, mask: masks.Mask | None) -> Callable[[], Tensor]:
    """FlexAttention, compiled for this mask; its BlockMask is made before the clock starts."""
    from torch.nn.attention.flex_attention import flex_attention

    assert mask is not None
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    block_mask = mask.to_block_mask(q.shape[2], device=q.device)
    return lambda: compiled(q, k, v, block_mask=block_mask)


def measure_record(dtype: torch.dtype, device: torch.device, rounds: int) -> float:
    """The time of attention with a record as a multiple of the time without."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, 2048, HEAD_DIM, dtype=dtype, device=device) for _ in range(3))
    ratios = []
    with torch.inference_mode():
        plain = finished(device, lambda: headwise.attention(q, k, v))
        recorded = finished(device, lambda: headwise.attention(q, k, v, record=True))
        plain()
        for _ in range(4 * rounds):
            start = time.perf_counter()
            plain()
            middle = time.perf_counter()
            recorded()
            ratios.append((time.perf_counter() - middle) / (middle - start))
    return statistics.median(ratios)


def show(row: dict[str, Any]) -> list[str]:
    seconds = {who: f"{value * 1000:,.{1 if value > 1e-2 else 3}f} ms" for who, value in row["seconds"].items()}
    ratio = {who: f"{value:.2f}×" for who, value in row["ratio"].items()}
    return [
        *(row["mask"], f"{row['length']:,}", row["pass"], row["kernel"]),
        *(seconds["headwise"], seconds["sdpa"], seconds.get("flex", "–"), ratio["sdpa"], ratio.get("flex", "–")),
    ]


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="torch")
    main()
