"""Fine-tuning MiniLM on SST-2: `headwise train classify` against a plain loop of transformers, of the same recipe.

    python benchmarks/finetune.py --data ../shared/data/sst2             # 3 epochs of each; about 15 minutes on 2 cores
    python benchmarks/finetune.py --data ../shared/data/sst2 --sentences 960 --epochs 1     # the ratio, in a minute
    python benchmarks/finetune.py --data ../shared/data/sst2 --precision bf16-mixed         # ours on bfloat16 units
    python benchmarks/finetune.py --data ../shared/data/sst2 --scratch   # and a small encoder from scratch
    python benchmarks/finetune.py --data ../shared/data/sst2 --json results.json

The recipe of both: batches of 32, AdamW at a constant 5e-5, 3 epochs; the plain loop in float32. The plain loop pads
random batches to their longest sentence and takes its last weights. headwise puts sentences of about one length
together, and takes the weights that are best on dev.tsv; that validation is part of its time. Both train in turns of a
few steps in one process, so that whatever else the machine does slows both down alike; seconds of the processor are
shown too. Loading and tokenising count for neither.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import headwise
from headwise.models.checkpoint import default_model
from headwise.tasks.classify import Classify

BATCH, LR = 32, 5e-5


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, required=True, help="a folder with train.tsv, dev.tsv and test.tsv")
    arguments.add_argument("--sentences", type=int, help="train on the first so many; default: all")
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--turn", type=int, default=10, help="steps of a turn")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--precision", default="32", help="of headwise; default: 32")
    arguments.add_argument("--scratch", action="store_true", help="also train from scratch")
    arguments.add_argument("--json", type=Path, help="also write the figures to this file")
    chosen = arguments.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 140)
    about = {
        "machine": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "headwise": headwise.__version__,
        "seed": chosen.seed,
    }
    console.print("  ".join(f"{name} {value}" for name, value in about.items()), highlight=False)
    rows = compare(chosen)
    if chosen.scratch:
        rows["headwise, from scratch"] = from_scratch(chosen.data, chosen.seed)
    table = Table("", "test accuracy", "seconds", "× plain", "processor seconds", "× plain")
    plain = rows["transformers, plain loop"]
    for name, row in rows.items():
        times = [(row[of], row[of] / plain[of]) for of in ("seconds", "processor_seconds")]
        shown = [cell for taken, ratio in times for cell in (f"{taken:.0f}", f"{ratio:.3f}")]
        table.add_row(name, f"{row['accuracy']:.4f}", *shown)
    console.print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1), encoding="utf-8")


def compare(chosen: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Accuracy on test.tsv and seconds of training, of both, in turns; with fewer sentences dev.tsv has fewer too."""
    folder, sentences, epochs, turn, seed = chosen.data, chosen.sentences, chosen.epochs, chosen.turn, chosen.seed
    train = read(folder / "train.tsv", sentences)
    plain = PlainLoop(train, epochs, seed)
    held = None if sentences is None else max(sentences // 8, 1)  # as all of dev.tsv is to all of train.tsv

    class InTurns(Classify):
        """Hands over to the plain loop after every few of its own steps."""

        watch = Stopwatch()

        def on_fit_start(self) -> None:
            self.watch.go()

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if (batch_idx + 1) % turn == 0:
                self._hand_over(turn)

        def on_fit_end(self) -> None:
            self._hand_over(None)

        def _hand_over(self, steps: int | None) -> None:
            self.watch.halt()
            with torch.random.fork_rng():
                plain.run(steps)
            self.watch.go()

    with tempfile.TemporaryDirectory() as temporary:
        task = InTurns.fit(
            {"text": train[0], "label": train[1]},
            validation=dict(zip(("text", "label"), read(folder / "dev.tsv", held), strict=True)),
            out=Path(temporary) / "run",
            epochs=epochs,
            batch_size=BATCH,
            lr=LR,
            schedule="constant",
            warmup=0.0,
            clip=0.0,
            seed=seed,
            precision=chosen.precision,
        )
    test = read(folder / "test.tsv")
    ours = task.evaluate(dict(zip(("text", "label"), test, strict=True))).values["accuracy"]
    return {
        "transformers, plain loop": {"accuracy": plain.accuracy(*test), **plain.watch.figures()},
        "headwise": {"accuracy": ours, **InTurns.watch.figures()},
    }


def from_scratch(folder: Path, seed: int) -> dict[str, float]:
    """Accuracy on test.tsv and seconds of a small encoder whose words and weights are learned from train.tsv alone."""
    watch = Stopwatch()
    watch.go()
    columns = {"text": "1", "label": "2"}
    task = Classify.fit(folder / "train.tsv", validation=folder / "dev.tsv", model="scratch", seed=seed, **columns)
    watch.halt()
    return {"accuracy": task.evaluate(folder / "test.tsv").values["accuracy"], **watch.figures()}


class Stopwatch:
    """Seconds, and seconds of the processor, between `go` and `halt`."""

    def __init__(self) -> None:
        self._taken = [0.0, 0.0]

    def go(self) -> None:
        self._begun = time.perf_counter(), time.process_time()

    def halt(self) -> None:
        now = time.perf_counter(), time.process_time()
        self._taken = [sum(each) - begun for *each, begun in zip(self._taken, now, self._begun, strict=True)]

    def figures(self) -> dict[str, float]:
        return dict(zip(("seconds", "processor_seconds"), self._taken, strict=True))


class PlainLoop:
    """What one writes with transformers and torch, a few steps at a time."""

    def __init__(self, train: tuple[list[str], list[str]], epochs: int, seed: int) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.manual_seed(seed)
        folder = default_model()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LR)
        self.watch = Stopwatch()
        self._ids = self.tokenizer(train[0], truncation=True, max_length=512)["input_ids"]
        self._labels = [int(label) for label in train[1]]
        self._batches = self._drawn(epochs, random.Random(seed))
        self._generator_state = torch.get_rng_state()

    def _drawn(self, epochs: int, draw: random.Random) -> Iterator[list[int]]:
        for _ in range(epochs):
            order = draw.sample(range(len(self._ids)), len(self._ids))
            yield from (order[start : start + BATCH] for start in range(0, len(order), BATCH))

    def run(self, steps: int | None) -> None:
        """The next steps, or all that are left."""
        torch.set_rng_state(self._generator_state)
        self.model.train()
        self.watch.go()
        for number, places in enumerate(self._batches, start=1):
            batch = self.tokenizer.pad({"input_ids": [self._ids[i] for i in places]}, return_tensors="pt")
            self.optimizer.zero_grad()
            self.model(**batch, labels=torch.tensor([self._labels[i] for i in places])).loss.backward()
            self.optimizer.step()
            if number == steps:
                break
        self.watch.halt()
        self._generator_state = torch.get_rng_state()

    @torch.no_grad()
    def accuracy(self, texts: list[str], labels: list[str]) -> float:
        self.model.eval()
        right = 0
        for start in range(0, len(texts), BATCH):
            batch = self.tokenizer(texts[start : start + BATCH], padding=True, truncation=True, return_tensors="pt")
            called = self.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
            true = labels[start : start + BATCH]
            right += sum(int(each) == int(label) for each, label in zip(called, true, strict=True))
        return right / len(texts)


def read(path: Path, sentences: int | None = None) -> tuple[list[str], list[str]]:
    """Sentences and labels."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[:sentences]]
    return [line[0] for line in lines], [line[1] for line in lines]


if __name__ == "__main__":
    main()
