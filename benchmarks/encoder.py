"""MiniLM over paragraphs of Python's manual, against what people would take instead on a CPU.

    python benchmarks/encoder.py                        # all 2,608: some minutes for each round on 2 cores
    python benchmarks/encoder.py --texts 326 --rounds 3  # every eighth paragraph
    python benchmarks/encoder.py --only headwise CTranslate2 --json results.json
    python benchmarks/encoder.py --score ../shared/data/sst2 --only headwise   # a task's score in each precision

The contestants: Hugging Face, sentence-transformers, ONNX Runtime, OpenVINO and CTranslate2 (encoder_peers.py; extra
`bench`). What is not here is named. Each gets the texts in the manual's order and returns the mean of the last hidden
states of each, tokenising included. "the products" is torch.mm of the shapes of the model's linear layers over its real
tokens and nothing else, in float32: the limit.

A contestant runs with the quickest of its settings (threads, streams, batches), which are tried first, and does not pay
for the one before it: many runtimes keep their threads awake after a call, so a turn begins when this process uses no
processor any more, with a run that is not timed. One sentence is timed in both orders, A B C and C B A. Ratios are
within a round. Cosines are to the vectors of Hugging Face in float32: the least and the mean.

The score is the accuracy on test.tsv of a logistic regression on the vectors of train.tsv.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks import figures
from benchmarks.encoder_peers import Candidates, Contestants, Encode, tokenized

SENTENCE = ["A kernel says why it refuses and what it costs."]  # 12 tokens with [CLS] and [SEP]
OURS, EXACT, LIMIT = "headwise float32", "Hugging Face", "the products"
PEERS = ("transformers", "onnxruntime", "openvino", "nncf", "ctranslate2")
REST = 2.0  # seconds that a turn waits at most for the threads of the one before


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--texts", type=int, help="about so many, from all over; default: all")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--only", nargs="+", help="contestants, by the beginnings of their names")
    arguments.add_argument("--score", type=Path, help="a folder with train.tsv and test.tsv, instead of the times")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    warnings.filterwarnings("ignore")

    paragraphs = [text for topic in topics.values() for text in topic.split("\n\n") if text.strip()]
    texts = paragraphs[:: max(1, len(paragraphs) // chosen.texts)] if chosen.texts else paragraphs
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        contestants = Contestants(Path(folder), chosen.threads, paragraphs[1 :: len(paragraphs) // 64])
        found, missing = made(contestants, chosen.only)
        if chosen.score:
            score(found, chosen.score)
            return
        tokens = sum(map(len, tokenized(texts)))
        settings = {name: quickest(candidates, texts[::4]) for name, candidates in found.items()}
        runs: dict[str, Encode] = {name: found[name][setting] for name, setting in settings.items()}
        runs[LIMIT] = products(tokens)
        vectors = {name: run(texts) for name, run in runs.items() if name != LIMIT}
        times = take_turns(runs, texts, chosen.rounds)
        alone = {name: found[name][quickest(candidates, SENTENCE)] for name, candidates in found.items()}
        orders = [take_turns(alone, SENTENCE, 2 + chosen.rounds, 20, each) for each in (list(alone), list(alone)[::-1])]

    peers = {name: version(name) for name in PEERS if find_spec(name)}
    about = figures.about(texts=len(texts), tokens=tokens, rounds=chosen.rounds, peers=peers, missing=missing)
    console = Console(width=None if sys.stdout.isatty() else 170)
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    rows = []
    for name in found:
        row = {"seconds": figures.spread(times[name])}
        row |= cosines(vectors[name], vectors[EXACT]) if EXACT in vectors else {}
        row |= {"of the limit": figures.ratios(times, LIMIT, name)}
        row |= {"time": figures.ratios(times, name, OURS)} if OURS in times else {}
        rows.append({"table": "encoding", "work": name, "figures": row, "setting": settings[name]})
    for name in found:
        both = dict(zip(("ms", "in reverse order"), ([1000 * x for x in times[name]] for times in orders), strict=True))
        both = {order: figures.spread(values) for order, values in both.items()}
        rows.append({"table": "one sentence", "work": name, "figures": both})
    console.print(table_of(rows))
    if chosen.json:
        figures.write(chosen.json, about, rows)


def made(contestants: Contestants, only: Sequence[str] | None) -> tuple[dict[str, Candidates], dict[str, str]]:
    """The contestants that were asked for, and the reasons why others are missing."""
    found, missing = {}, {}
    for name, make in contestants.all_of():
        if only and not any(name.startswith(each) for each in only):
            continue
        try:
            found[name] = make()
            torch.set_num_threads(contestants.threads)  # CTranslate2 sets those of its OpenMP, which may be torch's
        except Exception as reason:  # other versions of the peers may refuse the model
            missing[name] = " ".join(f"{type(reason).__name__}: {reason}".split())[:150]
            hint = "; pip install 'headwise[bench]'" if isinstance(reason, ImportError) else ""
            print(f"{name} is missing: {missing[name]}{hint}", file=sys.stderr, flush=True)
    return found, missing


def quickest(candidates: Candidates, texts: Sequence[str], runs: int = 3) -> str:
    """The setting that takes the least time for these texts."""
    if len(candidates) == 1:
        return next(iter(candidates))
    times = take_turns(candidates, texts, runs)
    return min(times, key=lambda name: min(times[name]))


def take_turns(
    runs: Mapping[str, Encode], texts: Sequence[str], rounds: int, calls: int = 1, order: Iterable[str] = ()
) -> dict[str, list[float]]:
    """The seconds of a call of each contestant in each round. A turn is a rest, a short run untimed, and some calls."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in order or runs:
            rest(name)
            runs[name](SENTENCE)
            start = time.perf_counter()
            for _ in range(calls):
                runs[name](texts)
            times[name].append((time.perf_counter() - start) / calls)
    return times


def rest(name: str) -> None:
    """Wait until no thread of this process runs: some runtimes keep theirs awake, in case there is more work."""
    end = time.perf_counter() + REST
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.02)
        if time.process_time() - before < 0.002:
            return
    print(f"before {name}: some thread is still awake after {REST} seconds", file=sys.stderr, flush=True)


def table_of(rows: Sequence[Mapping[str, object]]) -> Table:
    columns = ("seconds", "time, headwise float32 = 1", "of the limit", "cosine, least", "mean", "12 tokens, ms")
    table = Table("", *columns, "in reverse order", "setting")
    for column in table.columns[1:-1]:
        column.justify = "right"
    alone = {row["work"]: row["figures"] for row in rows if row["table"] == "one sentence"}
    for row in rows:
        if row["table"] == "encoding":
            found, sentence = row["figures"], alone[row["work"]]
            cells = [f"{found['seconds'][0]:.2f}", figures.shown(found.get("time")), f"{found['of the limit'][0]:.2f}"]
            cells += [f"{found[each][0]:.6f}" if each in found else "–" for each in ("cosine, least", "cosine, mean")]
            table.add_row(row["work"], *cells, *(f"{each[0]:.2f}" for each in sentence.values()), row["setting"])
    return table


def cosines(a: np.ndarray, b: np.ndarray) -> dict[str, list[float]]:
    """The least and the mean over the texts."""
    found = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {name: [round(float(x), 6)] for name, x in (("cosine, least", found.min()), ("cosine, mean", found.mean()))}


def products(tokens: int, rows: int = 2048) -> Callable[[Sequence[str]], np.ndarray]:
    """The products of the linear layers of MiniLM over so many tokens, whatever the texts are."""
    shapes = [(384, 1152), (384, 384), (384, 1536), (1536, 384)]
    pairs = [(torch.randn(rows, k), torch.randn(k, n)) for k, n in shapes]

    def run(texts: Sequence[str]) -> np.ndarray:
        for begin in range(0, 12 if texts is SENTENCE else tokens, rows):
            for _ in range(6):
                for x, w in pairs:
                    torch.mm(x[: tokens - begin], w)
        return np.empty(0)

    return run


def score(contestants: Mapping[str, Candidates], folder: Path) -> None:
    """The accuracy of a linear classifier on the vectors of each contestant."""
    from sklearn.linear_model import LogisticRegression

    parts = {}
    for part in ("train", "test"):
        lines = (folder / f"{part}.tsv").read_text(encoding="utf-8").splitlines()
        parts[part] = tuple(zip(*(line.split("\t") for line in lines), strict=True))
    table = Table("", f"accuracy on {len(parts['test'][0]):,} texts")
    for name, candidates in contestants.items():
        run = next(iter(candidates.values()))
        learned = LogisticRegression(max_iter=1000).fit(run(parts["train"][0]), parts["train"][1])
        table.add_row(name, f"{learned.score(run(parts['test'][0]), parts['test'][1]):.4f}")
    Console().print(table)


if __name__ == "__main__":
    main()
