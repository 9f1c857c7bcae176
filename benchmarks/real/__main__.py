"""Attention modules of public repositories: which of their bugs does the doctor name, and whom does it accuse wrongly?

    python benchmarks/real CHECKOUTS                # the half that may be worked with
    python benchmarks/real CHECKOUTS --half sealed  # the other half, scored once before it was worked with
    python benchmarks/real CHECKOUTS --half second  # 29 modules that were collected later, scored once before likewise
    python benchmarks/real CHECKOUTS --seeds 0 1 2  # with other seeds, from which the doctor draws weights and inputs

CHECKOUTS is a folder of clones, each `OWNER+NAME`, bare or not. `cases.json` says which class of which commit is
examined, with which arguments, and what is true of it. The code of the modules does not lie here.

# The rule of choice

1. A repository on GitHub that is little known: no package that many install, none of a company or of the authors of a
   well-known model, none that `benchmarks/wild` or docs/doctor.md names. All fields: vision, speech, language,
   time series, graphs, recommendation, medicine and biology, control, tutorials and courses; six modules in Keras.
2. At most two classes of a repository. A class computes attention itself: it does more than call a ready layer.
3. It runs with torch (or Keras), NumPy and einops, and with files of its own repository, on small inputs, in one call
   that somebody has seen to work before the doctor is asked.
4. Files are taken in the order in which a search lists them, whatever they contain; a class is left out only by 1 to 3.
   When a kind (with a bug, clean) is full, further ones of that kind are left out, unseen by the doctor as all others.
5. What is true is found by reading and by experiment, before the doctor is asked. *bug*: what is computed contradicts
   what the code, its document or its caller says, in a call that the repository makes or that the signature offers; an
   experiment shows it. *clean*: an experiment on each of masks, order, examples, scale, gradients and modes shows
   nothing. *doubtful*: readers could differ; it is run, and not counted.
6. The rule, the list and the truths are committed before the doctor runs on any of them. None is dropped later, and a
   truth that turns out to be wrong is corrected in a change of its own that says why.

The halves of `cases.json` are drawn by `random.Random(20261130)`, among those with a bug and the clean ones alike.
`second.json` was collected by somebody else, after the work on both halves.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]
from told import Told, read_told  # noqa: E402

DRAWN_BY = 20261130  # the seed of the halves
HALVES = ("open", "sealed")
SETS = (*HALVES, "second")
SECONDS = 180
PROCESSES = 2
ASK = "import sys, torch; torch.manual_seed(int(sys.argv.pop(1))); from headwise.cli import main; main(sys.argv[1:])"


@dataclasses.dataclass(frozen=True)
class Case:
    """A class of a repository, and what is true of it."""

    repository: str
    commit: str
    path: str
    kind: str
    field: str
    framework: str
    arguments: dict[str, Any]
    truth: str  # "bug", "clean" or "doubtful"
    bugs: list[dict[str, Any]]  # each with "named_by"
    half: str

    @property
    def name(self) -> str:
        return f"{self.repository}:{self.kind}"


@dataclasses.dataclass(frozen=True)
class Score(Told):
    """What the doctor said of it."""

    case: Case
    seconds: float

    @property
    def named(self) -> int:
        """The number of its bugs that are named."""
        return sum(bool(set(bug["named_by"]) & set(self.bugs)) for bug in self.case.bugs)


def read_cases() -> list[Case]:
    """All cases, each with its half; those that were collected later with "second"."""
    listed, later = (json.loads((HERE / name).read_text(encoding="utf-8")) for name in ("cases.json", "second.json"))
    halves: dict[int, str] = {}
    for truth in ("bug", "clean", "doubtful"):
        places = [place for place, case in enumerate(listed) if case["truth"] == truth]
        random.Random(DRAWN_BY).shuffle(places)
        halves |= {place: HALVES[i % 2] for i, place in enumerate(places)}
    halves |= {len(listed) + i: "second" for i in range(len(later))}
    kept = {field.name for field in dataclasses.fields(Case)}
    return [
        Case(kind=case["class"], half=halves[place], **{name: x for name, x in case.items() if name in kept})
        for place, case in enumerate([*listed, *later])
    ]


def find_clone(checkouts: Path, repository: str) -> Path | None:
    """The git directory of a clone of a repository, bare or not."""
    folder = checkouts / repository.replace("/", "+")
    return next((head.parent for head in sorted(folder.glob("**/HEAD")) if (head.parent / "objects").is_dir()), None)


def score(checkouts: Path, seed: int, case: Case) -> Score | None:
    """Ask the doctor about the class, in the folder of its repository; None without a clone."""
    clone = find_clone(checkouts, case.repository)
    if clone is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        root, found = Path(folder) / "code", Path(folder) / "found.json"
        root.mkdir()
        git = ["git", f"--git-dir={clone}", "archive", case.commit, "--", "*.py"]  # the rest may be large
        archive = subprocess.run(git, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(root)], input=archive, check=True)
        options = [word for name, value in case.arguments.items() for word in ("--set", f"{name}={value}")]
        command = [sys.executable, "-c", ASK, str(seed), "doctor", f"{case.path}:{case.kind}", *options]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        begun = time.perf_counter()
        with (
            open(os.devnull, "w") as nothing,
            subprocess.Popen(
                [*command, "--json", str(found)], cwd=root, env=environment, stdout=nothing, stderr=nothing
            ) as process,
        ):
            try:
                process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        seconds = time.perf_counter() - begun
        return Score(**vars(read_told(found)), case=case, seconds=seconds)


def summarise(scores: Sequence[Score]) -> str:
    """One paragraph: bugs named, clean modules with a false bug, modules examined."""
    broken, clean = ([x for x in scores if x.case.truth == truth] for truth in ("bug", "clean"))
    bugs = sum(len(x.case.bugs) for x in broken)
    named, some = sum(x.named for x in broken), sum(x.named > 0 for x in broken)
    false = sum(bool(x.bugs) for x in clean)
    return (
        f"{named} of {bugs} bugs named; {some} of {len(broken)} modules with a bug have one named; {false} of "
        f"{len(clean)} clean modules have a false bug; {sum(x.examined for x in scores)} of {len(scores)} examined; "
        f"{sum(x.unchecked for x in scores) / max(len(scores), 1):.1f} checks a module could not be made"
    )


def compare_seeds(by_seed: dict[int, list[Score]]) -> Iterable[str]:
    """The modules of which the doctor says different bugs with different seeds."""
    said: dict[str, dict[int, tuple[str, ...]]] = collections.defaultdict(dict)
    for seed, scores in by_seed.items():
        for x in scores:
            said[x.case.name][seed] = x.bugs
    for name, bugs in said.items():
        if len(set(bugs.values())) > 1:
            yield f"{name}: " + "; ".join(f"seed {seed}: {', '.join(names) or 'none'}" for seed, names in bugs.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, metavar="CHECKOUTS")
    parser.add_argument("--half", choices=SETS, default="open")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose name has one of these words")
    asked = parser.parse_args()
    cases = [x for x in read_cases() if x.half == asked.half]
    cases = [x for x in cases if not asked.only or any(word in x.name for word in asked.only)]
    console = Console(width=None if sys.stdout.isatty() else 200)
    by_seed: dict[int, list[Score]] = {}
    for seed in asked.seeds:
        with ThreadPoolExecutor(PROCESSES) as pool:
            found = list(pool.map(partial(score, asked.checkouts, seed), cases))
        missing = [case.repository for case, x in zip(cases, found, strict=True) if x is None]
        if missing:
            console.print("no clone of:", ", ".join(missing))
        by_seed[seed] = [x for x in found if x is not None]
        table = Table("module", "truth", "named by", "bugs", "risks", "seconds")
        for x in by_seed[seed]:
            truth = x.case.truth if x.examined else f"{x.case.truth}, not examined"
            names = " | ".join(", ".join(bug["named_by"]) for bug in x.case.bugs)
            table.add_row(x.case.name, truth, names, ", ".join(x.bugs), ", ".join(x.risks), f"{x.seconds:.1f}")
        console.print(table)
        console.print(f"{asked.half}, seed {seed}: {summarise(by_seed[seed])}")
    for line in compare_seeds(by_seed):
        console.print(line)


if __name__ == "__main__":
    main()
