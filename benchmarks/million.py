"""A million tokens on one machine: what planning, recording, statistics and the live page take, in time and memory.

    python benchmarks/million.py                                        # some minutes; 2 GB on the disk
    python benchmarks/million.py --length 65536 --steps plan page
    python benchmarks/million.py --keep million.hw --picture page.png   # keep the record, and a picture of its page

4 heads of 64 in bfloat16: tokens of a small vocabulary, turned by RoPE. Each step is a process of its own. Its memory
is what that process needs at most beyond what it has loaded before; pages of a mapped file count too, though the system
can take them back. On a busy machine the time of the processors says more than the clock.

plan     `headwise.plan`: the mask cut into blocks and tiles, and the costs of all kernels
record   `headwise.watch(offload=folder)` around `headwise.attention` with a causal window of 4,096: queries, keys and
         values in mapped files; then `seen.save`
read     `headwise.load` of that file, exact weights of single cells, and all statistics of `seen.summary()`
page     the live page of it, by HTTP and in headless Chromium: its first picture, from sampled rows, and exact cells
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import headwise
from headwise import masks
from headwise.call import make_call
from headwise.masks import Mask
from headwise.records import AttentionRecord, Seen

HEADS, WIDTH, WINDOW = 4, 64, 4096
STRENGTH = 24  # of what follows from the distance
STEPS = ("plan", "record", "read", "page")
CELLS = 20  # that are asked for, each of another row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=2**20)
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=STEPS)
    parser.add_argument("--keep", type=Path, help="where to keep the record; else it is removed")
    parser.add_argument("--mask", choices=sorted(MASKS), default="window", help="of the record")
    parser.add_argument("--picture", type=Path, help="where to put a picture of the page")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # this step, in this process
    asked = parser.parse_args()
    if asked.alone:
        for row in ALONE[asked.alone](asked):
            print(json.dumps(row))
        return
    with tempfile.TemporaryDirectory(dir=asked.keep.parent if asked.keep else None) as folder:
        asked.keep = asked.keep or Path(folder) / "million.hw"
        table = Table("", f"{asked.length:,} tokens", "time", "of processors", "memory")
        for step in asked.steps:
            for one in [f"plan:{name}" for name in MASKS] if step == "plan" else [step]:
                options = ["--length", str(asked.length), "--keep", str(asked.keep), "--mask", asked.mask]
                options += ["--picture", str(asked.picture)] if asked.picture else []
                command = [sys.executable, __file__, "--alone", one, *options]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                for name, *times, memory in map(json.loads, done.stdout.splitlines()):
                    table.add_row(
                        step, name, *map(shown, times), "" if memory is None else f"{memory / 2**20:,.0f} MiB"
                    )
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def shown(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.2f} s" if seconds >= 0.1 else f"{seconds * 1000:,.1f} ms"


def documents(length: int) -> Mask:
    """A dozen texts of other lengths, one behind the other."""
    draw = random.Random(0)
    starts = torch.tensor(sorted(draw.sample(range(1, length), min(11, length - 1))))
    return masks.documents(torch.bucketize(torch.arange(length), starts, right=True)) & masks.causal()


MASKS: dict[str, Callable[[int], Mask]] = {
    "causal": lambda n: masks.causal(),
    "window": lambda n: masks.window(WINDOW - 1, 0),
    "window, global tokens": lambda n: masks.window(WINDOW // 2, WINDOW // 2) | masks.global_tokens([0, 1, 2, 3]),
    "causal window, first keys": lambda n: (masks.window(WINDOW - 1, 0) | masks.lengths(4)) & masks.causal(),
    "causal, padding": lambda n: masks.causal() & masks.lengths(n - n // 100),
    "prefix": lambda n: masks.prefix(n // 2),
    "documents of 8,192": lambda n: masks.documents(torch.arange(n) // 8192),
    "documents of 8,192, causal": lambda n: masks.documents(torch.arange(n) // 8192) & masks.causal(),
    "12 documents, causal": documents,
}

Row = tuple[str, float, float | None, float | None]  # what, seconds, those of all processors, bytes


def plan(name: str, length: int) -> Iterator[Row]:
    """The plan of a call with one of the masks."""
    small = torch.empty(1, HEADS, 64, WIDTH)
    headwise.plan(small, small, small, mask=masks.causal())  # what is loaded at the first call
    x = torch.empty(1, 1, 1, WIDTH).expand(1, HEADS, length, WIDTH)
    mask = MASKS[name](length)
    with measured() as took:
        headwise.plan(x, x, x, mask=mask)
    yield name, *took


def record(path: Path, name: str, length: int) -> Iterator[Row]:
    """A layer that is watched, kept on the disk and saved."""

    class Layer(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return headwise.attention(q, k, v, mask=masks.window(WINDOW - 1, 0))

    q, k = tokens(length)
    layer = Layer()
    with torch.no_grad():
        layer(*(x[:, :, :128] for x in (q, k, k)))
        with measured() as took, headwise.watch(layer, offload=path.parent) as seen:
            layer(q, k, k)
        with measured() as alone:
            layer(q, k, k)
    yield "the layer, watched, its queries and keys on the disk", *took
    yield "the layer, not watched", *alone[:2], None
    if name != "window":  # another mask, without running the layer, which may take an hour
        seen = Seen([AttentionRecord(make_call(q, k, k, mask=MASKS[name](length)))])
    with measured() as took:
        seen.save(path)
    yield "seen.save", *took


def read(path: Path, length: int) -> Iterator[Row]:
    """The record from its file: cells, and statistics."""
    torch.zeros(1).softmax(0)
    headwise.load  # noqa: B018 (imports)
    with measured() as took:
        seen = headwise.load(path)
    yield "headwise.load", *took
    of = seen[0]
    draw, times = random.Random(0), []
    for _ in range(CELLS):
        row = draw.randrange(length // 2, length)
        col = draw.randrange(max(0, row - WINDOW), row)
        started = time.perf_counter()
        of.weights(rows=row, cols=col, heads=draw.randrange(HEADS))
        times.append(time.perf_counter() - started)
    yield "record.weights of one cell, median", statistics.median(times), None, None
    if of.mask is not None and of.mask.band() and of.mask.band()[0] > -length:
        with measured() as took:
            seen.summary()
        yield "seen.summary(), from all rows", *took
    else:
        with measured() as took:
            of.statistics("entropy", rows=64)
        yield "the entropy of 64 rows", *took


def page(path: Path, length: int, picture: Path | None) -> Iterator[Row]:
    """The live page: the server, one browser, and cells by HTTP."""
    import headwise.viewer.site
    from headwise.viewer.inputs import inputs_of
    from headwise.viewer.server import serving

    seen = headwise.load(path)
    with measured() as took:
        context = serving(inputs_of(seen), title=f"{length:,} tokens")
        url = context.__enter__()
        urllib.request.urlopen(url).read()
    try:
        yield "the server is up, and gives the page", *took
        with measured() as took:
            first, note = in_browser(url, picture)
        yield f"the first picture of the page ({note})", first, None, took[2]
        draw, times = random.Random(0), []
        for _ in range(CELLS):
            row = draw.randrange(length // 2, length)
            col = draw.randrange(max(0, row - WINDOW), row)
            asked = f"head={draw.randrange(HEADS)}&rows={row}-{row + 1}&cols={col}-{col + 1}&height=1&width=1&how=max"
            started = time.perf_counter()
            urllib.request.urlopen(f"{url}tile?input=0&stack=0&layer=0&{asked}").read()
            times.append(time.perf_counter() - started)
        yield "an exact cell, median", statistics.median(times), None, None
        yield "an exact cell, slowest", max(times), None, None
    finally:
        context.__exit__(None, None, None)


def in_browser(url: str, picture: Path | None) -> tuple[float, str]:
    """Seconds from the request for the page until its first picture is drawn, and what the page says of it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-headless-shell")
        browser = playwright.chromium.launch(executable_path=found)
        shown = browser.new_page(viewport={"width": 1200, "height": 720})
        shown.goto(url, wait_until="commit")
        shown.wait_for_function("() => window.headwise?.app?.drawn", timeout=600_000)
        # Both are counted from the same moment, when the browser began to ask for the page.
        first: float = shown.evaluate("() => headwise.app.drawn / 1000")
        note: str = shown.evaluate("() => headwise.app.view.note.textContent")
        if picture:  # when more rows are there; with one cell read
            last = int(shown.evaluate("() => headwise.app.stack.rows.length")) - 1
            shown.evaluate(f"location.hash = 'lang=en&head=0&scale=log&row={last * 3 // 4}&col={last * 11 // 16}'")
            shown.wait_for_timeout(15_000)
            shown.screenshot(path=picture)
        browser.close()
    return first, note


def tokens(length: int) -> tuple[Tensor, Tensor]:
    """Queries and keys [1, HEADS, length, WIDTH] of tokens that come again, turned by RoPE, at each head's own pace."""
    torch.manual_seed(0)
    octaves = torch.linspace(3, 18, WIDTH // 2)  # periods from 8 to 262,144 tokens
    turns = 2 * torch.pi / 2**octaves
    shares = (-(((octaves - torch.tensor([16.0, 14.0, 18.0, 10.0])[:, None]) / 1.5) ** 2)).exp()
    sizes = (STRENGTH * shares / shares.sum(1, keepdim=True)).sqrt().repeat(1, 2)[:, None]
    vocabulary = 0.6 * torch.randn(HEADS, 64, WIDTH)
    q, k = (torch.empty(1, HEADS, length, WIDTH, dtype=torch.bfloat16) for _ in range(2))
    for start in range(0, length, 2**16):
        place = torch.arange(start, min(length, start + 2**16))
        words = vocabulary[:, torch.randint(0, 64, (len(place),))]
        for x in (q, k):
            x[0, :, start : start + 2**16] = turned(sizes + words, place[:, None] * turns)
    return q, k


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """RoPE: pairs of features, each turned by its angle."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


@contextlib.contextmanager
def measured() -> Iterator[list[float]]:
    """[seconds, those of all processors, bytes at the peak beyond those before] of what is inside."""
    before, started, worked = peak(), time.perf_counter(), time.process_time()
    took: list[float] = []
    yield took
    took += [time.perf_counter() - started, time.process_time() - worked, peak() - before]


def peak() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


ALONE: dict[str, Callable[[Any], Iterator[Row]]] = {
    **{f"plan:{name}": lambda asked, name=name: plan(name, asked.length) for name in MASKS},
    "record": lambda asked: record(asked.keep, asked.mask, asked.length),
    "read": lambda asked: read(asked.keep, asked.length),
    "page": lambda asked: page(asked.keep, asked.length, asked.picture),
}


if __name__ == "__main__":
    main()
