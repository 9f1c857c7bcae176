"""The viewer against BertViz: what its page weighs, how long it takes to write, open and use; and the live server.

    pip install "headwise[view]" bertviz==1.4.1 playwright      # and a Chromium
    python benchmarks/viewer.py                        # some minutes
    python benchmarks/viewer.py --tokens 128 256 --json results.json

Page: MiniLM (6 layers × 12 heads) reads English prose. What was seen is at hand for both (records here, weights of an
eager run there), so only the page's own work is timed: `headwise.view`, with every statistic and check, and
`bertviz.model_view`, written to a file; they take turns. Browser: headless Chromium opens the page from the disk;
`first paint` is what it reports as first-contentful-paint, `map` when the first head is drawn, `head` the median time
from asking for another head until it is drawn. Server: one causal layer of 12 heads of 64 with random queries and keys;
each question is one about a head that nobody asked about before, over HTTP, and its answer the whole body.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pydoc_data.topics
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import headwise
from headwise import masks
from headwise.models.checkpoint import default_model
from headwise.records import AttentionRecord, Seen
from headwise.text import Tokenizer, Tokens
from headwise.viewer.inputs import inputs_of
from headwise.viewer.server import serving

Figures = dict[str, float]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, nargs="+", default=[128, 256, 512])
    arguments.add_argument("--long", type=int, default=4096, help="tokens of the long page; 0 = none")
    arguments.add_argument("--served", type=int, default=65536, help="tokens of the served record; 0 = none")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", help="also write the figures to this file")
    chosen = arguments.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    about = {
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "headwise": headwise.__version__,
    }
    console.print("  ".join(f"{name} {value}" for name, value in about.items()))
    found: dict[str, Any] = {"about": about, "pages": [], "long": None, "server": None}

    table = columns(
        "tokens", "page, MB", "BertViz", "×", "written, s", "BertViz", "×", "first paint, s", "map", "head, ms"
    )
    with tempfile.TemporaryDirectory() as folder:
        for tokens in chosen.tokens:
            row = measure_page(tokens, chosen.rounds, Path(folder))
            found["pages"].append(row)
            table.add_row(*show_page(row))
        if chosen.long:
            found["long"] = row = measure_long(chosen.long, Path(folder))
            table.add_row(*show_page(row))
    console.print(table)

    if chosen.served:
        found["server"] = served = measure_server(chosen.served, chosen.rounds)
        table = columns("served tokens", "512×512 picture of a whole head, ms", "exact 256×256 cells, ms")
        table.add_row(f"{chosen.served:,}", *(f"{served[name]:.0f}" for name in ("picture", "tile")))
        console.print(table)
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(found, indent=2), encoding="utf-8")


# --- Pages ------------------------------------------------------------------------------------------------------------


def measure_page(count: int, rounds: int, folder: Path) -> Figures:
    """Both pages of one text, written in turns; ours opened in a browser."""
    seen, tokens = read_prose(count)
    with torch.no_grad():
        weights = [record.weights() for record in seen]
    ours, theirs = folder / "headwise.html", folder / "bertviz.html"
    ways: dict[str, Callable[[], object]] = {
        "headwise": lambda: headwise.view(seen, ours),
        "bertviz": lambda: write_bertviz(weights, tokens, theirs),
    }
    ways["headwise"]()  # what is imported and compiled once is not counted, of neither
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds if count <= 256 else 1):
        for name, write in ways.items():
            times[name].append(seconds(write))
    written = {name: statistics.median(each) for name, each in times.items()}
    return {
        "tokens": count,
        "bytes": ours.stat().st_size,
        "bertviz_bytes": theirs.stat().st_size,
        "seconds": written["headwise"],
        "bertviz_seconds": written["bertviz"],
        **measure_browser(ours),
    }


def measure_long(count: int, folder: Path) -> Figures:
    """A page of a length that no other viewer opens: 6 layers × 12 heads of 32, causal, random queries and keys."""
    layers = [random_record(count, heads=12, dim=32, seed=layer) for layer in range(6)]
    path = folder / "long.html"
    taken = seconds(lambda: headwise.view(Seen(layers), path))
    return {"tokens": count, "bytes": path.stat().st_size, "seconds": taken, **measure_browser(path)}


def read_prose(count: int) -> tuple[Seen, Tokens]:
    """What MiniLM saw of the first `count` tokens of the documentation that every Python carries."""
    folder = default_model()
    model = headwise.Bert.from_pretrained(folder)
    text = "\n".join(pydoc_data.topics.topics.values())
    tokens = Tokenizer.from_pretrained(folder).encode(text[: 40 * count], max_length=count)
    with torch.no_grad(), headwise.watch(model, tokens=[tokens]) as seen:
        model(torch.tensor([tokens.ids]))
    return seen, tokens


def random_record(count: int, *, heads: int, dim: int, seed: int) -> AttentionRecord:
    generator = torch.Generator().manual_seed(seed)
    q, k = (1.5 * torch.randn(1, heads, count, dim, generator=generator) for _ in range(2))
    return headwise.attention(q, k, k, mask=masks.causal(), record=True)[1] if count <= 8192 else bare_record(q, k)


def bare_record(q: torch.Tensor, k: torch.Tensor) -> AttentionRecord:
    """A record without the call: what is asked here does not depend on the output, which takes a minute."""
    from headwise.call import make_call

    return AttentionRecord(make_call(q, k, k, mask=masks.causal()))


def write_bertviz(weights: list[torch.Tensor], tokens: Tokens, path: Path) -> None:
    from bertviz import model_view

    page = model_view(weights, list(tokens.labels), html_action="return")
    path.write_text(page.data, encoding="utf-8")


def measure_browser(path: Path) -> Figures:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(300_000)
        page.goto(path.as_uri(), wait_until="commit")
        page.wait_for_function("() => window.headwise?.app?.drawn")
        drawn = page.evaluate("headwise.app.drawn / 1000")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000")
        page.wait_for_timeout(1000)  # the small pictures of the heads go on meanwhile, as they do for a person
        heads = page.evaluate(
            """async () => {
                const times = [];
                for (const head of [1, 2, 3, 4, 5]) {
                    const start = performance.now();
                    headwise.app.go({ head });
                    while (!(headwise.app.drawn > start)) await new Promise(requestAnimationFrame);
                    times.push(headwise.app.drawn - start);
                }
                return times;
            }"""
        )
        browser.close()
    return {"paint": paint, "map": drawn, "head": statistics.median(heads) / 1000}


# --- The server -------------------------------------------------------------------------------------------------------


def measure_server(count: int, rounds: int) -> Figures:
    """The first answers about heads that were not asked about before."""
    record = random_record(count, heads=12, dim=64, seed=0)
    pictures, tiles = [], []
    with serving(inputs_of(record), title="benchmark") as url:
        ask(url, 0, range(256), 256, "max")  # what happens once is not counted
        for head in range(1, rounds + 1):
            pictures.append(ask(url, head, range(count), 512, "sample"))
            tiles.append(ask(url, head + rounds, range(count - 256, count), 256, "max"))
    return {"tokens": count, "picture": 1000 * statistics.median(pictures), "tile": 1000 * statistics.median(tiles)}


def ask(url: str, head: int, cells: range, size: int, how: str) -> float:
    """Seconds that a tile takes, of these rows and columns."""
    side = f"{cells.start}-{cells.stop}"
    asked = f"input=0&stack=0&layer=0&head={head}&rows={side}&cols={side}&height={size}&width={size}&how={how}"
    start = time.perf_counter()
    with urllib.request.urlopen(f"{url}tile?{asked}") as answer:
        assert len(answer.read()) == 4 * size * size
    return time.perf_counter() - start


# --- Small things -----------------------------------------------------------------------------------------------------


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def find_browser() -> str | None:
    names = ("chromium-headless-shell", "chromium", "google-chrome")
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


def columns(*names: str) -> Table:
    table = Table(*names)
    for column in table.columns:
        column.justify = "right"
    return table


def show_page(row: Figures) -> list[str]:
    peer = "bertviz_bytes" in row
    return [
        f"{row['tokens']:,}",
        f"{row['bytes'] / 1e6:.1f}",
        f"{row['bertviz_bytes'] / 1e6:.0f}" if peer else "–",
        f"{row['bertviz_bytes'] / row['bytes']:.0f}" if peer else "–",
        f"{row['seconds']:.2f}",
        f"{row['bertviz_seconds']:.2f}" if peer else "–",
        f"{row['bertviz_seconds'] / row['seconds']:.0f}" if peer else "–",
        f"{row['paint']:.2f}",
        f"{row['map']:.2f}",
        f"{1000 * row['head']:.0f}",
    ]


if __name__ == "__main__":
    main()
