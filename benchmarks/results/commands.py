"""The commands of an experiment: run as a reader would type them, with their time, and the scores that they write."""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.results.page import Table

WIDTH = 110  # of a command on the page
QUICK = ("--epochs", "1", "--time-limit", "0.1")  # minutes


@dataclass(frozen=True)
class Ran:
    """A command that ended well, and its seconds by the clock and on the processor."""

    command: str
    seconds: float
    cpu_seconds: float

    def figures(self) -> dict[str, float]:
        return {"seconds": round(self.seconds, 1), "cpu_seconds": round(self.cpu_seconds, 1)}


@dataclass(frozen=True)
class Evaluated:
    """The scores of a run on a file, and those of each baseline."""

    ran: Ran
    scores: dict[str, float]
    baselines: dict[str, dict[str, float]]
    rows: int

    def figures(self) -> dict[str, Any]:
        return {"scores": self.scores, "baselines": self.baselines, "rows": self.rows, **self.ran.figures()}

    def table(
        self,
        digits: Mapping[str, int],
        *,
        ours: str = "headwise",
        others: Mapping[str, Sequence[str]] | None = None,
    ) -> Table:
        """A row for us, for each baseline, and for each of `others`.

        Args:
            digits: the scores to show, and how many digits after the point.
            others: what is beside them, such as what was published: name -> a cell for each score.
        """
        written = [(ours, *self.cells(digits))]
        written += [(name, *_cells(scores, digits)) for name, scores in self.baselines.items()]
        written += [(name, *cells) for name, cells in (others or {}).items()]
        return Table(("", *digits), tuple(written))

    def cells(self, digits: Mapping[str, int]) -> list[str]:
        """The scores as a table has them."""
        return _cells(self.scores, digits)


def train(task: str, source: str, *options: str, folder: Path, quick: bool, out: str = "run") -> Ran:
    """`headwise train TASK SOURCE … --out OUT` in a folder; or what it took, if the folder has such a run already."""
    words = ("train", task, source, *options, *(QUICK if quick else ()), "--out", out)
    note = folder / f"{out}.trained.json"
    if note.exists():
        kept = Ran(**json.loads(note.read_text(encoding="utf-8")))
        if kept.command == wrapped(["headwise", *words]):
            print(f"\n== {out} is trained: {kept.command}", flush=True)
            return kept
    shutil.rmtree(folder / out, ignore_errors=True)
    ran = headwise(*words, folder=folder)
    note.write_text(json.dumps(asdict(ran), indent=1), encoding="utf-8")
    return ran


def evaluate(source: str, *, folder: Path, out: str = "run") -> Evaluated:
    """`headwise evaluate OUT SOURCE` in a folder."""
    ran = headwise("evaluate", out, source, folder=folder, hidden=("--json", f"{out}.json"))
    found = json.loads((folder / f"{out}.json").read_text(encoding="utf-8"))
    return Evaluated(ran, found["scores"], found["baselines"], found["rows"])


def headwise(*words: str, folder: Path, hidden: Sequence[str] = ()) -> Ran:
    """`headwise …`; `hidden` are words that the page need not show. What it prints goes to the terminal."""
    return run("headwise", [sys.executable, "-m", "headwise", *words, *hidden], words, folder)


def run(name: str, program: Sequence[str], words: Sequence[str], folder: Path) -> Ran:
    """Any program, in a folder. Ends the script where it fails."""
    print(f"\n== {name} {shlex.join(words)}", flush=True)
    begun, used = time.perf_counter(), _processor_seconds()
    # The commands write pages for files, not for this terminal's width.
    code = subprocess.run(program, cwd=folder, env={**os.environ, "COLUMNS": "120"}, check=False).returncode
    if code:
        raise SystemExit(f"scripts/results: {name} ended with exit code {code}, in {folder}")
    return Ran(wrapped([*name.split(), *words]), time.perf_counter() - begun, _processor_seconds() - used)


def wrapped(words: Sequence[str]) -> str:
    """A command on as many lines as it needs."""
    lines = [""]
    for word in map(shlex.quote, words):
        if len(lines[-1]) + len(word) > WIDTH and word.startswith("-"):
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return " \\\n".join(lines)


def times(trained: Ran, found: Evaluated, what: str = "") -> str:
    """A sentence on how long both took."""
    training, test = (f"{s:.0f} s" if s < 600 else f"{s / 60:.1f} min" for s in (trained.seconds, found.ran.seconds))
    return (
        f"{what}: training took {training}, the test {test}." if what else f"Training took {training}, the test {test}."
    )


def _cells(scores: Mapping[str, float], digits: Mapping[str, int]) -> list[str]:
    return [f"{scores[name]:.{places}f}" if name in scores else "" for name, places in digits.items()]


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
