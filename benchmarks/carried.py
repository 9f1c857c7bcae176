"""Pages that carry their model (`headwise view --with-model`): what they weigh, how long they take to open and answer.

    python benchmarks/carried.py                # MiniLM in int8 and float32: two minutes
    python benchmarks/carried.py RUN            # and a run of headwise train classify

Each browser opens the page from the disk. `ready`: seconds until the model answered for the first time. Milliseconds:
the worker's own, of the encoder with its statistics, the median over texts of random words with so many tokens (in
brackets the least); `answer`: from setting the text until its weights are there, tokenizer and what follows included.
`from Python`: the largest distance of a weight from that of the same model in Python, by the portable kernels. `from
float32`: what the page says.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from headwise import cli, tasks
from headwise.models import Bert
from headwise.models.checkpoint import default_model
from headwise.native.linear import Encoder
from headwise.records import AttentionRecord
from headwise.text import Tokenizer

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the drivers of the browsers, and what Python computes, are those of the tests

from tests.conftest import launch_chromium  # noqa: E402
from tests.viewer.firefox import firefox  # noqa: E402
from tests.viewer.test_carried import as_portable, in_python, pack_as_the_page  # noqa: E402

LENGTHS = (16, 64, 128)
TEXTS = 30  # of each length
COMPARED = 1  # of them, with Python
READY = """(async () => {
    const isReady = () => window.headwise && headwise.app.source.live.run !== null;
    while (!isReady()) await new Promise((later) => setTimeout(later, 5));
})()"""
ASK = """(async (prompt) => {
    const { app, state } = headwise;
    const begun = performance.now();
    state.set({ prompt });
    while (app.source.live.prompt !== prompt) await new Promise((later) => setTimeout(later, 1));
    const { milliseconds: encoder, distance } = app.source.live;
    return { answer: performance.now() - begun, encoder, distance };
})"""
WEIGHTS = """(async () => {
    const { stack } = headwise.app;
    const n = stack.rows.length;
    const found = [];
    for (const [layer, { heads }] of stack.layers.entries())
        for (let head = 0; head < heads; head++)
            found.push(...(await stack.tile(layer, head, [0, n], [0, n], n, n, "max")));
    return found;
})()"""

Evaluate = Callable[[str], Any]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", nargs="?", help="a run folder of headwise train classify")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = arguments.parse_args()
    folder = default_model()
    models = [
        ("MiniLM", [], Bert.from_pretrained(folder), Tokenizer.from_pretrained(folder), dtype)
        for dtype in ("int8", "float32")
    ]
    if chosen.run:
        task = tasks.load(chosen.run)
        models.append(("classifier", [chosen.run], task.model.encoder, task.subwords.tokenizer, "int8"))
    table = Table(
        *("model", "dtype", "weights, MB", "page, MB", "browser", "ready, s"), *(f"{n} tokens, ms" for n in LENGTHS)
    )
    for name in (f"answer at {LENGTHS[0]}, ms", "from Python", "from float32: mean", "most"):
        table.add_column(name)
    found = []
    with tempfile.TemporaryDirectory() as kept:
        for name, first, bert, tokenizer, dtype in models:
            page = Path(kept) / f"{name}-{dtype}.html"
            assert (
                cli.main(["view", *first, "A warm, funny film.", "--with-model", "--dtype", dtype, "--out", str(page)])
                == 0
            )
            for browser in ("Chromium", "Firefox"):
                row = {
                    "model": name,
                    "dtype": dtype,
                    "browser": browser,
                    "page": page.stat().st_size,
                    "weights": weights_in(page),
                    **measure(browser, page, bert, tokenizer, dtype),
                }
                found.append(row)
                times = [f"{row[f'{n}']:.1f} ({row[f'{n} least']:.1f})" for n in LENGTHS]
                far = ["–" if math.isnan(row[key]) else f"{row[key]:.1e}" for key in ("python", "mean", "most")]
                table.add_row(
                    name,
                    dtype,
                    f"{row['weights'] / 1e6:.1f}",
                    f"{row['page'] / 1e6:.1f}",
                    browser,
                    f"{row['ready']:.1f}",
                    *times,
                    f"{row['answer']:.0f}",
                    *far,
                )
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


def measure(browser: str, page: Path, bert: Bert, tokenizer: Tokenizer, dtype: Any) -> dict[str, float]:
    draw = random.Random(0)
    words = sorted(name for name in tokenizer.backend.get_vocab() if name.isascii() and name.isalpha())
    found: dict[str, float] = {"python": 0.0}
    with as_portable():
        packed = pack_as_the_page(bert, dtype)
    with opened(browser, page) as (evaluate, ready):
        found["ready"] = ready
        for length in LENGTHS:
            rows = []
            for number in range(TEXTS):
                text = " ".join(draw.choices(words, k=length - 2))
                rows.append(evaluate(f"{ASK}({json.dumps(text)})"))
                if number < COMPARED:
                    far = distance(evaluate(WEIGHTS), packed, tokenizer.encode(text).ids)
                    found["python"] = max(found["python"], far)
            times = [row["encoder"] for row in rows]
            found |= {f"{length}": statistics.median(times), f"{length} least": min(times)}
            if length == LENGTHS[0]:
                found["answer"] = statistics.median(row["answer"] for row in rows)
        found |= rows[-1].get("distance") or {"mean": math.nan, "most": math.nan}  # of int8 only
    return found


def weights_in(page: Path) -> int:
    """The bytes of the weights in a page."""
    text = page.read_text("utf-8")
    begun = text.index('id="weights">') + len('id="weights">')
    return (text.index("<", begun) - begun) * 3 // 4


@contextmanager
def opened(browser: str, page: Path) -> Iterator[tuple[Evaluate, float]]:
    """Open the page; yield a function that evaluates an expression there, and the seconds until the model was ready."""
    if browser == "Firefox":
        with firefox() as fox:
            assert fox is not None, "there is no Firefox"
            begun = time.monotonic()
            fox.open(page.as_uri())
            fox.evaluate(READY)
            yield fox.evaluate, time.monotonic() - begun
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = launch_chromium(playwright)
        tab = chromium.new_page()
        begun = time.monotonic()
        tab.goto(page.as_uri())
        tab.evaluate(READY)
        yield tab.evaluate, time.monotonic() - begun
        chromium.close()


def distance(weights: list[float], encoder: Encoder, ids: Any) -> float:
    """The largest distance of the page's weights from Python's."""
    with as_portable():
        _, calls = in_python(encoder, {"ids": list(ids), "gates": None})
        expected = torch.cat([AttentionRecord(call).weights().flatten() for call in calls])
    return float((torch.tensor(weights) - expected).abs().max())


if __name__ == "__main__":
    main()
