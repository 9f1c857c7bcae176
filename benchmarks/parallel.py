"""Sequences that several processes share: measured against one process, and on paper.

    python benchmarks/parallel.py                      # two processes of one thread against one process of two
    python benchmarks/parallel.py --train              # a language model of 16,384 tokens a sequence, step by step
    python benchmarks/parallel.py --paper              # 8 to 1,024 processes, 1M to 100M tokens: nothing is run

Measured: forward and backward of 8 heads of 64 in float32, 32,768 tokens, in turns. A process's own computation is
timed too, so that the imbalance that the plan predicted stands beside the one that was measured. The model that is
trained reads the bytes of Python's manual in float64; each process has half of the positions.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy

import headwise
from headwise import masks, parallel
from headwise.masks import Mask
from headwise.models.language_model import CausalConfig, CausalLanguageModel

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
    arguments.add_argument("--tokens", type=int, help="default: 32,768; with --train 16,384")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--strategy", default="auto")
    arguments.add_argument("--steps", type=int, default=8, help="with --train")
    arguments.add_argument("--train", action="store_true")
    arguments.add_argument("--paper", action="store_true")
    arguments.add_argument("--as", dest="rank", type=int, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    if chosen.paper:
        print_paper()
        return
    tokens = chosen.tokens or (16384 if chosen.train else 32768)
    work = Work(chosen.train, tokens, chosen.rounds, chosen.strategy, chosen.steps)
    if chosen.rank is not None:
        dist.init_process_group("gloo", init_method=f"file://{chosen.folder / 'store'}", rank=chosen.rank, world_size=2)
        mesh = init_device_mesh("cpu", (2,))
        found = trained(work, mesh) if work.train else timed(work, mesh)
        (chosen.folder / f"{chosen.rank}.json").write_text(json.dumps(found))
        dist.destroy_process_group()
    else:
        first, second = in_two_processes()
        console.print(table_of_losses(first) if work.train else table_of_times(first, second))


@dataclasses.dataclass(frozen=True)
class Work:
    """What both processes do."""

    train: bool
    tokens: int
    rounds: int
    strategy: str
    steps: int


def in_two_processes() -> list[dict[str, Any]]:
    """This script again, as process 0 and as process 1: what each found."""
    with tempfile.TemporaryDirectory() as folder:
        started = [
            subprocess.Popen([sys.executable, *sys.argv, "--as", str(rank), "--folder", folder], env=os.environ)
            for rank in (0, 1)
        ]
        if any(each.wait() for each in started):
            raise SystemExit("a process failed")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in (0, 1)]


# --- Measured ---------------------------------------------------------------------------------------------------------


def table_of_times(*found: dict[str, Any]) -> Table:
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
    return table


def timed(work: Work, mesh: DeviceMesh) -> dict[str, Any]:
    """One of the two processes; the first also computes alone, while the other one waits."""
    rank, tokens, strategy = mesh.get_local_rank(), work.tokens, work.strategy
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
        for turn in range(work.rounds + 1):  # the first is not counted
            for how, run, threads in (("one", one, 2), ("two", two, 1), ("own", own, 1)):
                if how == "own" and turn not in (1, 2):
                    continue  # what it is for needs no more of them
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
    return found


# --- Trained ----------------------------------------------------------------------------------------------------------


def trained(work: Work, mesh: DeviceMesh) -> dict[str, list[float]]:
    """The losses of every step: of two processes that share each sequence, and of the first alone."""
    torch.set_num_threads(1)
    found = {"two": losses_of(work, mesh)}
    torch.set_num_threads(2)
    if mesh.get_local_rank() == 0:
        found["one"] = losses_of(work, None)
    dist.barrier()
    return found


def losses_of(work: Work, mesh: DeviceMesh | None) -> list[float]:
    """A small language model, trained by Adam from the same weights on the same sequences."""
    torch.manual_seed(0)
    model = CausalLanguageModel(CausalConfig(256, dim=64, num_layers=2, num_heads=2, dropout=0.0)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for ids in sequences(work.tokens, work.steps):
        inputs, labels = ids[:, :-1], ids[:, 1:]
        if mesh is None:
            total = cross_entropy(model(inputs)[0], labels[0], reduction="sum")
        else:
            layout = parallel.deal(masks.causal(), work.tokens, mesh)
            inputs, labels = (headwise.shard(x, layout, mesh) for x in (inputs, labels))
            with headwise.context_parallel(mesh, layout, strategy=work.strategy):
                total = cross_entropy(model(inputs)[0], labels[0], reduction="sum")
        optimizer.zero_grad()
        (total / work.tokens).backward()
        summed = [total.detach(), *(x.grad for x in model.parameters() if x.grad is not None)]
        if mesh is not None:
            for each in summed:
                dist.all_reduce(each)
        optimizer.step()
        losses.append(float(summed[0]) / work.tokens)
    return losses


def sequences(tokens: int, count: int) -> Iterator[torch.Tensor]:
    """[1, tokens + 1] at a time: the bytes of Python's manual, its topics in alphabetical order."""
    text = "".join(topics[name] for name in sorted(topics)).encode()
    for place in range(count):
        start = place * tokens % (len(text) - tokens)
        yield torch.tensor([list(text[start : start + tokens + 1])])


def table_of_losses(first: dict[str, list[float]]) -> Table:
    table = Table("step", "one process", "two processes", "difference")
    for step, (one, two) in enumerate(zip(first["one"], first["two"], strict=True), 1):
        table.add_row(str(step), f"{one:.9f}", f"{two:.9f}", f"{abs(one - two):.1e}")
    return table


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
