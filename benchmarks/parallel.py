"""Sequences that several processes share: measured against one process, and on paper.

    python benchmarks/parallel.py                      # two processes of one thread against one process of two
    python benchmarks/parallel.py --paper              # 8 to 1,024 processes, 1M to 100M tokens: nothing is run

Measured: forward and backward of 8 heads of 64 in float32, 32,768 tokens, in turns. A process's own computation is
timed too, so that the imbalance that the plan predicted stands beside the one that was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.distributed.device_mesh import init_device_mesh

import headwise
from headwise import masks, parallel
from headwise.masks import Mask

HEADS, DIM = 8, 64
MASKS = ("causal", "window", "packed")


def mask_of(name: str, length: int) -> Mask:
    """The masks that are measured. The lengths of packed documents are log-normal, 600 tokens at the median."""
    if name == "causal":
        return masks.causal()
    if name == "window":
        return masks.window(1023, 0)
    if name == "window + global":
        return masks.window(4095, 0) | masks.global_tokens(list(range(64)))
    drawn = torch.Generator().manual_seed(0)
    sizes = torch.empty(length // 600 + 64).log_normal_(6.4, 1.2, generator=drawn).long().clamp(16, 65536)
    ids = torch.arange(len(sizes)).repeat_interleave(sizes)
    ids = torch.cat([ids, ids.new_full((max(0, length - len(ids)),), len(sizes))])[:length]
    return masks.documents(ids) & masks.causal()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=32768)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--strategy", default="auto")
    arguments.add_argument("--paper", action="store_true")
    arguments.add_argument("--as", dest="rank", type=int, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    if chosen.paper:
        print_paper()
    elif chosen.rank is not None:
        work(chosen.rank, chosen.folder, chosen.tokens, chosen.rounds, chosen.strategy)
    else:
        measure(console, chosen.tokens, chosen.rounds, chosen.strategy)


# --- Measured ---------------------------------------------------------------------------------------------------------


def measure(console: Console, tokens: int, rounds: int, strategy: str) -> None:
    """Start two processes, the first of which also computes alone while the other one waits."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--tokens", str(tokens), "--rounds", str(rounds), "--strategy", strategy]
        started = [
            subprocess.Popen([*command, "--as", str(rank), "--folder", folder], env=os.environ) for rank in (0, 1)
        ]
        if any(each.wait() for each in started):
            raise SystemExit("a process failed")
        found = [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in (0, 1)]
    table = Table(
        "mask", "dealt", "strategy", "one, 2 threads", "two, 1 thread", "throughput", "imbalance: plan", "measured"
    )
    for name in MASKS:
        first, second = (each[name] for each in found)
        ratios = [one / two for one, two in zip(first["one"], first["two"], strict=True)]
        own = [statistics.median(each["own"]) for each in (first, second)]
        table.add_row(
            name,
            first["way"],
            first["strategy"],
            f"{statistics.median(first['one']):.2f} s",
            f"{statistics.median(first['two']):.2f} s",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{first['planned']:.3f}",
            f"{max(own) / statistics.mean(own):.3f}",
        )
    console.print(table)


def work(rank: int, folder: Path, tokens: int, rounds: int, strategy: str) -> None:
    """One of the two processes."""
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for name in MASKS:
        mask = mask_of(name, tokens)
        torch.manual_seed(0)
        whole = [torch.randn(1, HEADS, tokens, DIM) for _ in range(3)]
        layout = parallel.deal(mask, tokens, mesh)
        parts = [headwise.shard(x, layout, mesh, dim=2).requires_grad_() for x in whole]
        plan = parallel.on_paper(mask, tokens, 2, heads=HEADS, dim=DIM)
        cells = plan.sizes.cells

        def one(whole: list[torch.Tensor] = whole, mask: Mask = mask) -> None:
            given = [x.detach().requires_grad_() for x in whole]
            headwise.attention(*given, mask=mask).sum().backward()

        def two(parts: list[torch.Tensor] = parts, mask: Mask = mask) -> None:
            with headwise.context_parallel(mesh, strategy=strategy):
                headwise.attention(*parts, mask=mask).sum().backward()

        rows = layout.positions[rank]
        aligned = mask.aligned(tokens, tokens)

        def own(whole: list[torch.Tensor] = whole, rows: torch.Tensor = rows, aligned: Mask = aligned) -> None:
            q = whole[0][:, :, rows].requires_grad_()
            k, v = (x.detach().requires_grad_() for x in whole[1:])
            every = torch.arange(tokens)
            headwise.attention(q, k, v, mask=masks.picked(aligned, rows, every)).sum().backward()

        times: dict[str, list[float]] = {"one": [], "two": [], "own": []}
        for turn in range(rounds + 1):  # the first is not counted
            for how, run, threads in (("one", one, 2), ("two", two, 1), ("own", own, 1)):
                torch.set_num_threads(threads)
                dist.barrier()
                begun = time.perf_counter()
                if how != "one" or rank == 0:
                    run()
                    if turn:
                        times[how].append(time.perf_counter() - begun)
                dist.barrier()
        found[name] = {
            **times,
            "way": layout.way,
            "strategy": plan.strategy if strategy == "auto" else strategy,
            "planned": float(cells.max() / cells.mean()),
        }
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


# --- On paper ---------------------------------------------------------------------------------------------------------


def print_paper() -> None:
    """A layer of 32 heads and 8 key heads of 128 in bfloat16, as Markdown."""
    sizes = {"heads": 32, "key_heads": 8, "dim": 128, "dtype": torch.bfloat16, "bandwidth": 5e10, "flops": 4e14}
    print("| mask | tokens | processes | dealt | idle | to a process | ring attention | Ulysses | strategy |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in ("causal", "window + global", "packed"):
        for tokens, counts in ((1_000_000, (8, 64)), (10_000_000, (64, 256)), (100_000_000, (256, 1024))):
            if name == "packed" and tokens > 10_000_000:
                continue  # 100 million ids take more memory than is worth it
            mask = mask_of(name, tokens)
            for count in counts:
                plan = parallel.on_paper(mask, tokens, count, **sizes)  # type: ignore[arg-type]
                key_bytes, query_bytes = plan.sizes.key_bytes, plan.sizes.key_bytes * 4
                ring = tokens * (count - 1) // count * key_bytes  # all keys go round
                ulysses = tokens * (count - 1) // count**2 * (key_bytes + query_bytes)
                cells = [f"{plan.costs['gather'].sent / 1e9:.2f} GB", f"{ring / 1e9:.2f} GB"]
                cells.append(f"{ulysses / 1e9:.2f} GB" if count <= 8 else "needs 8 or fewer")
                shown = [name, f"{tokens // 10**6}M", str(count), plan.layout.way, f"{plan.idle:.1%}", *cells]
                print("| " + " | ".join([*shown, plan.strategy]) + " |")


if __name__ == "__main__":
    main()
