"""The README's own example, ten times: `headwise train classify examples/reviews.csv` with its default options.

    python benchmarks/flagship.py                # seeds 0 to 9; about 5 minutes on 2 cores
    python benchmarks/flagship.py --seeds 2      # seeds 0 and 1
    python benchmarks/flagship.py --data small.csv --validation-share 0.2    # other data; other options are passed on

For each seed: the command itself, in a process of its own, and its seconds; what the run says of "a warm, funny film";
and how many of the 50 plain sentences of tests/data/plain_reviews.csv it gets right, none of which is in the data.
Fails if one seed answers wrongly, or gets fewer than 45 of the 50 right.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from headwise import tasks
from headwise.tasks.training.run import read_scores

ROOT = Path(__file__).parents[1]
PLAIN = ROOT / "tests" / "data" / "plain_reviews.csv"
SENTENCE, LABEL = "a warm, funny film", "good"
LEAST = 0.9  # of the plain sentences


class Run(NamedTuple):
    seconds: float
    label: str
    probability: float
    validation: float
    plain: float
    wrong: list[str]


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", type=Path, default=ROOT / "examples" / "reviews.csv")
    arguments.add_argument("--seeds", type=int, default=10, help="how many, from 0")
    chosen, options = arguments.parse_known_args()
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    table = Table("seed", "seconds", f"“{SENTENCE}”", "probability", "validation", "plain sentences")
    runs = []
    for seed in range(chosen.seeds):
        run = train(chosen.data, seed, options)
        runs.append(run)
        cells = f"{run.seconds:.1f}", run.label, f"{run.probability:.3f}", f"{run.validation:.3f}", f"{run.plain:.2f}"
        table.add_row(str(seed), *cells)
        console.print(f"seed {seed}: {', '.join(cells)}", *(f"  wrong: {each}" for each in run.wrong), sep="\n")
    console.print(table)
    return int(any(run.label != LABEL or run.plain < LEAST for run in runs))


def train(data: Path, seed: int, options: list[str]) -> Run:
    """The command, and then what its run folder says."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        command = ["train", "classify", str(data), "--text", "sentence", "--label", "label", "--out", str(folder)]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "headwise", *command, "--seed", str(seed), *options], capture_output=True, text=True
        )
        seconds = time.monotonic() - began
        if done.returncode:
            raise SystemExit(done.stderr)
        task = tasks.load(folder)
        assert isinstance(task, tasks.Classify)
        (said,) = task.predict([SENTENCE])
        plain = task.read(PLAIN, task.options)
        called = [row["label"] for row in task.predict(plain)]
        rows = zip(plain.columns["text"], called, plain.columns["label"], strict=True)
        wrong = [text for text, label, true in rows if label != true]
        scores = read_scores(folder)
        assert scores is not None
        accuracy = scores.values["accuracy"]
        return Run(seconds, said["label"], said["probability"], accuracy, 1 - len(wrong) / len(plain), wrong)


if __name__ == "__main__":
    sys.exit(main())
