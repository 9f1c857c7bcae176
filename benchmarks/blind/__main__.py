"""Attention modules by authors who knew only a list of styles: which of the broken ones does the doctor name?

    python benchmarks/blind                       # all sets, two files at a time: an hour
    python benchmarks/blind usual_8 research_7    # some of them
    python benchmarks/blind usual_8 --only 10 27  # and of these some files
    python benchmarks/blind --unpack FOLDER       # all sets as files, into a new folder
    python benchmarks/blind --pack FOLDER         # and back, with what was changed there

A set is a folder of 50 files, 30 with one mistake and 20 without, and `answers.csv`; `healthy_*` are 40 without. Its
author had not seen the doctor and ran no code. `usual_*` are in the styles of tutorials, libraries and language models,
`research_*` in those of vision, speech, graphs, recommendation and memory. Each set was scored before anybody looked at
it (docs/doctor.md). Since then the rules were repaired with it in view: a score here says what still works, and not
what the doctor will name.

Each file is examined as a user does it, by `headwise doctor FILE:CLASS`, in a process of its own. Where the command
says which argument of the constructor it needs, that is set.

All answers lie here, and 152 files to read: three broken and two healthy ones of each set, three of `healthy_*`, drawn
so that each kind of mistake, and of correct code that looks suspicious, is there, about as often as in all sets. The
other files are in `cases.tar.xz` alone. `--pack` makes that archive anew. It writes a file that lies here back to its
place, any other into the archive, and deletes what is missing in FOLDER. So a file that is copied here before `--pack`
leaves the archive, and one that is deleted here goes into it.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import itertools
import multiprocessing
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import headwise.doctor  # noqa: F401 (loaded here once: the processes are forks of this one)
from headwise.cli import main as command

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]
from told import Told, read_told  # noqa: E402

ARCHIVE = "cases.tar.xz"
PROCESSES, HINTS = 2, 6


@dataclasses.dataclass(frozen=True)
class Case:
    """One file."""

    path: Path
    kind: str  # of its main class
    broken: bool
    mistake: str

    @property
    def set(self) -> str:
        return self.path.parent.name

    @property
    def target(self) -> str:
        return f"{self.path}:{self.kind}"


@dataclasses.dataclass(frozen=True)
class Score(Told):
    """What the doctor said of it."""

    case: Case
    seconds: float


def files(folder: Path) -> set[str]:
    """Answers and modules of the sets in a folder, such as `usual_8/10.py`."""
    found = [*folder.glob("*/answers.csv"), *folder.glob("*/*.py")]
    return {path.relative_to(folder).as_posix() for path in found}


def unpack(folder: Path, here: Path = HERE) -> None:
    """Write all sets into a folder: what is in the archive, and what lies here."""
    with tarfile.open(here / ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for name in files(here):
        copy(name, here, folder)


def pack(folder: Path, here: Path = HERE) -> None:
    """Put the sets of a folder back here: answers and what lies here as files, all else into the archive."""
    given, readable = files(folder), files(here)
    for name in readable - given:
        (here / name).unlink()
    readable = {name for name in given if name in readable or name.endswith("/answers.csv")}
    for name in readable:
        copy(name, folder, here)
    # The same modules give the same archive: in order of their names, without times or owners.
    with tarfile.open(here / ARCHIVE, "w:xz", preset=9) as archive:
        for name in sorted(given - readable):
            text = (folder / name).read_bytes()
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))


def copy(name: str, source: Path, target: Path) -> None:
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / name, target / name)


def cases(root: Path, sets: Sequence[str], only: Sequence[str]) -> list[Case]:
    """Those of some sets that were unpacked into `root`; of all, if none is named."""
    found = []
    for folder in sorted(path.parent for path in root.glob("*/answers.csv")):
        if sets and folder.name not in sets:
            continue
        with (folder / "answers.csv").open(encoding="utf-8", newline="") as lines:
            for row in csv.DictReader(lines):
                if not only or row["file"].removesuffix(".py") in only:
                    is_broken = row["verdict"] == "broken"
                    found.append(Case(folder / row["file"], row["class"], is_broken, row["mistake"]))
    return found


def score(case: Case) -> Score:
    """What the command says, with the arguments that it asks for."""
    begun = time.perf_counter()
    settings: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        said, found = Path(folder) / "said.txt", Path(folder) / "found.json"
        for _ in range(HINTS):
            ask(case, settings, said, found)
            asked = said.read_text(encoding="utf-8").rpartition("needs")[2]
            needed = [setting.rstrip(".,)") for setting in re.findall(r"--set ([\w.]+=\S+)", asked)]
            if found.exists() or not set(needed) - set(settings):
                break
            settings += needed
        return Score(**vars(read_told(found)), case=case, seconds=time.perf_counter() - begun)


def ask(case: Case, settings: Sequence[str], said: Path, found: Path) -> None:
    """`headwise doctor` in a process of its own, which has what this one has loaded."""
    options = [word for setting in settings for word in ("--set", setting)]
    child = os.fork()
    if child == 0:
        text = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(text, 1)
        os.dup2(text, 2)
        try:
            command(["doctor", case.target, "--json", str(found), *options])
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def summary(scores: Sequence[Score]) -> str:
    broken, healthy = ([x for x in scores if x.case.broken is which] for which in (True, False))
    named, told = sum(bool(x.bugs) for x in broken), sum(bool(x.bugs or x.risks) for x in broken)
    false = sum(bool(x.bugs) for x in healthy)
    share = f" ({named / len(broken):.0%})" if broken else ""
    return f"{named} of {len(broken)} named{share}, {told} with risks; {false} of {len(healthy)} with a false bug"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="*", metavar="SET", help="the sets to score; all, if none is given")
    parser.add_argument("--only", nargs="*", default=[], metavar="NN", help="some files of them")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--unpack", type=Path, metavar="FOLDER", help="score none; write all sets into a new folder")
    instead.add_argument("--pack", type=Path, metavar="FOLDER", help="score none; put the sets of a folder back here")
    asked = parser.parse_args()
    if asked.unpack and asked.unpack.exists():
        parser.error(f"{asked.unpack} is there already")
    if asked.pack and not list(asked.pack.glob("*/answers.csv")):
        parser.error(f"no sets in {asked.pack}")
    known = {path.parent.name for path in HERE.glob("*/answers.csv")}
    if set(asked.sets) - known:
        parser.error(f"no set {', '.join(sorted(set(asked.sets) - known))}; there are {', '.join(sorted(known))}")
    if asked.unpack:
        unpack(asked.unpack)
    elif asked.pack:
        pack(asked.pack)
    else:
        report(asked.sets, asked.only)


def report(sets: Sequence[str], only: Sequence[str]) -> None:
    """Score some sets, and print what each got and which modules were missed."""
    torch.set_num_threads(1)
    console = Console(width=None if sys.stdout.isatty() else 160)
    scores: list[Score] = []
    with tempfile.TemporaryDirectory() as folder:
        unpack(Path(folder))
        wanted = cases(Path(folder), sets, only)
        with multiprocessing.get_context("fork").Pool(PROCESSES) as pool:
            for name, group in itertools.groupby(pool.imap(score, wanted), key=lambda x: x.case.set):
                scores += (of_set := list(group))
                console.print(f"{name}: {summary(of_set)}")
                sys.stdout.flush()  # a set takes minutes
    table = Table("set", "file", "class", "its answer", "bugs", "risks", "seconds")
    for x in scores:
        case = x.case
        if bool(x.bugs) != case.broken or not x.examined:
            answer = case.mistake if case.broken else "healthy"
            bugs = ", ".join(x.bugs) or ("" if x.examined else "not examined")
            table.add_row(case.set, case.path.name, case.kind, answer, bugs, ", ".join(x.risks), f"{x.seconds:.1f}")
    console.print("Missed, false, or not examined:", table)
    console.print(f"all: {summary(scores)}")


if __name__ == "__main__":
    main()
