"""The matrix of the doctor: which check says what of which module, of all sets and with and without their prose.

    python benchmarks/matrix.py FILE.csv                  # all, half an hour on two processors
    python benchmarks/matrix.py FILE.csv --sets wild usual_1 --texts bare
    python benchmarks/matrix.py FILE.csv --touched OLD.csv cache state_kept   # cases of which these checks said a word
    python benchmarks/matrix.py FILE.csv --checks cache state_kept            # all cases, and these checks alone
    python benchmarks/matrix.py FILE.csv --read           # what a file says, and run nothing
    python benchmarks/matrix.py FILE.csv --read --against OLD.csv

A row is a finding of a check about a module: set, case, text ("prose", or "bare": without docstrings and comments),
truth ("broken" or "healthy"), the check, the finding, its severity, and whether it stood in the report. A module of
which nothing was said has one row without a check. Of `wild`, "right" says whether the finding names the mistake; of
other sets, each bug of a broken module is right.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import csv
import dataclasses
import io
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import headwise.doctor.diagnosis as diagnosing
from headwise.cli import main as command
from headwise.doctor import laws as registry

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "wild")]
from imported import imported  # noqa: E402

wild, blind = (imported(HERE / name / "__main__.py", f"sets_{name}") for name in ("wild", "blind"))

TEXTS = ("prose", "bare")
COLUMNS = ("set", "case", "text", "truth", "check", "finding", "severity", "kept", "right", "seconds")
PROCESSES, SECONDS, HINTS = 2, 120, 6

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A module of a set, and how the doctor is asked about it: `ask` writes the report as JSON into a file."""

    set: str
    name: str
    truth: str
    path: Path
    named_by: frozenset[str] | None
    ask: Callable[[Path, Path], None]


def list_cases(folder: Path) -> Iterator[Case]:
    """All modules of all sets. `folder`: where the sets of `blind` are unpacked."""
    for each in wild.cases([]):
        for which, truth in (("broken", "broken"), ("fixed", "healthy")):
            ask = partial(ask_python, which)
            yield Case(f"wild/{each.half}", f"{each.name}.{which}", truth, each.path, frozenset(each.named_by), ask)
    blind.unpack(folder)
    for each in blind.cases(folder, [], []):
        truth = "broken" if each.broken else "healthy"
        yield Case(each.set, each.path.stem, truth, each.path, None, partial(ask_command, each.kind))


def ask_python(which: str, path: Path, found: Path) -> None:
    """Diagnose `broken()` or `fixed()` of a file."""
    told = wild.diagnosis(imported(path, f"case_{path.stem}"), which)
    found.write_text(json.dumps([told.to_dict()]), encoding="utf-8")


def ask_command(kind: str, path: Path, found: Path) -> None:
    """Run `headwise doctor FILE:CLASS`, with the arguments that it asks for."""
    settings: list[str] = []
    for _ in range(HINTS):
        said = found.with_suffix(".txt")
        with said.open("w") as text, contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            options = [word for setting in settings for word in ("--set", setting)]
            with contextlib.suppress(SystemExit):
                command(["doctor", f"{path}:{kind}", "--json", str(found), *options])
        words = said.read_text(encoding="utf-8").rpartition("needs")[2].split("--set ")[1:]
        needed = [word.split()[0].rstrip(".,)") for word in words if "=" in word.split()[0]]
        if found.exists() or not set(needed) - set(settings):
            break
        settings += needed
    told = json.loads(found.read_text(encoding="utf-8"))["diagnoses"] if found.exists() else []
    found.write_text(json.dumps(told), encoding="utf-8")


def strip(source: str) -> str:
    """Return Python code without docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [x for x in body if not (isinstance(x, ast.Expr) and isinstance(x.value, ast.Constant))]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def examine(case: Case, text: str) -> list[Row]:
    """Ask the doctor in a process of its own; the rows of what each check said."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path, found, noted = (Path(folder) / name for name in (case.path.name, "found.json", "noted.json"))
        source = case.path.read_text(encoding="utf-8")
        path.write_text(strip(source) if text == "bare" else source, encoding="utf-8")
        child = os.fork()
        if child == 0:
            _ask_and_note(case, path, found, noted)
        _wait(child)
        told = json.loads(found.read_text(encoding="utf-8")) if found.exists() else []
        said = json.loads(noted.read_text(encoding="utf-8")) if noted.exists() else []
    facts = {"set": case.set, "case": case.name, "text": text, "truth": case.truth}
    facts["seconds"] = f"{time.perf_counter() - begun:.1f}"
    stood = {(x["name"], x["severity"]) for each in told for x in each["findings"]}
    said += [["", *each] for each in sorted(stood - {(name, severity) for _, name, severity in said})]
    if not told or all(each["not_examined"] for each in told):
        said.append(["", "not examined", "note"])
    return [
        {**facts, "check": check, "finding": name, "severity": severity}
        | {"kept": int((name, severity) in stood), "right": int(case.named_by is None or name in case.named_by)}
        for check, name, severity in said
    ] or [{**facts, "check": "", "finding": "", "severity": "", "kept": 0, "right": 0}]


def _ask_and_note(case: Case, path: Path, found: Path, noted: Path) -> None:
    said: dict[tuple[str, str, str], None] = {}
    make = diagnosing._made

    def note(check: Any, patient: Any) -> Any:
        findings, reason = make(check, patient)
        said.update(dict.fromkeys((check.__module__.rpartition(".")[2], x.name, x.severity) for x in findings))
        return findings, reason

    diagnosing._made = note
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    try:
        case.ask(path, found)
    finally:
        noted.write_text(json.dumps(list(said)), encoding="utf-8")
        os._exit(0)


def _wait(child: int) -> None:
    until = time.monotonic() + SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, 9)
            until = float("inf")
        time.sleep(0.01)


def judge(rows: Iterable[Row]) -> dict[tuple[str, str], collections.Counter[str]]:
    """Count, for each (set, text): broken, named, healthy, false (healthy ones with a bug), not examined."""
    cases: dict[tuple[str, str, str], list[Row]] = collections.defaultdict(list)
    for row in rows:
        cases[row["set"], row["text"], row["case"]].append(row)
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for (group, text, _), said in cases.items():
        bugs = [row for row in said if row["severity"] == "bug" and int(row["kept"])]
        count = counts[group, text]
        count[said[0]["truth"]] += 1
        count["not examined"] += any(row["finding"] == "not examined" for row in said)
        if said[0]["truth"] == "broken":
            count["named"] += any(int(row["right"]) for row in bugs)
        else:
            count["false"] += bool(bugs)
    return counts


def name_alone(rows: Iterable[Row]) -> dict[str, tuple[int, int, int]]:
    """For each check: (broken modules that it names, those that it names alone, healthy ones that it accuses)."""
    by_case: dict[tuple[str, ...], set[str]] = collections.defaultdict(set)
    for row in rows:
        if row["severity"] == "bug" and int(row["kept"]) and (row["truth"] == "healthy" or int(row["right"])):
            by_case[row["set"], row["text"], row["case"], row["truth"]].add(row["check"])
    found: dict[str, tuple[int, int, int]] = collections.defaultdict(lambda: (0, 0, 0))
    for (*_, truth), checks in by_case.items():
        for check in checks:
            names, alone, false = found[check]
            broken = truth == "broken"
            found[check] = names + broken, alone + (broken and len(checks) == 1), false + (not broken)
    return found


def tell(rows: list[Row]) -> None:
    for (group, text), n in sorted(judge(rows).items()):
        print(
            f"{group:<12} {text:<6} named {n['named']} of {n['broken']}; false {n['false']} of {n['healthy']}; "
            f"not examined {n['not examined']}"
        )
    print("\ncheck: broken modules named, named alone, healthy ones accused")
    for check, numbers in sorted(name_alone(rows).items(), key=lambda each: each[1]):
        print(f"{check or '(no check)':<24} {numbers[0]:>5} {numbers[1]:>5} {numbers[2]:>5}")
    told = {row["check"] for row in rows}
    silent = {*registry.SOURCE, *registry.READ, *registry.PROBED} - told
    print("\nchecks that never said anything:", *sorted(silent))


def compare(rows: list[Row], before: list[Row]) -> None:
    """Print the cases whose bugs are not those of before."""
    bugs = []
    for each in (before, rows):
        said: dict[tuple[str, str, str, str], set[str]] = collections.defaultdict(set)
        for row in each:
            of = said[row["set"], row["text"], row["case"], row["truth"]]
            if row["severity"] == "bug" and int(row["kept"]) and (row["truth"] == "healthy" or int(row["right"])):
                of.add(row["finding"])
        bugs.append(said)
    for key in sorted(bugs[0].keys() & bugs[1].keys()):
        if bool(bugs[0][key]) != bool(bugs[1][key]):
            print(*key, "before:", *sorted(bugs[0][key]), "| now:", *sorted(bugs[1][key]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sets", nargs="*", default=[], metavar="SET", help="wild, wild/kept, usual_1, …; all")
    parser.add_argument("--texts", nargs="*", default=TEXTS, choices=TEXTS)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th case of a set")
    parser.add_argument("--touched", nargs="+", default=[], metavar=("OLD.csv", "CHECK"), help="cases of these checks")
    parser.add_argument("--checks", nargs="*", default=[], metavar="CHECK", help="make these checks alone")
    parser.add_argument("--read", action="store_true", help="run nothing: say what the file says")
    parser.add_argument("--against", type=Path, metavar="CSV", help="also the cases that differ from this file")
    asked = parser.parse_args()
    if not asked.read:
        run(asked)
    rows = read(asked.file)
    tell(rows)
    if asked.against:
        compare(rows, read(asked.against))


def run(asked: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, asked.file.open("w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        table.writeheader()
        wanted = [x for x in list_cases(Path(folder)) if not asked.sets or {x.set, x.set.split("/")[0]} & {*asked.sets}]
        wanted = choose(wanted, *asked.touched)[:: asked.every]
        pairs = [(case, text) for case in wanted for text in asked.texts]
        limit_to(asked.checks)
        with multiprocessing.get_context("fork").Pool(PROCESSES, warm_up) as pool:
            for rows in pool.imap(_examine_pair, pairs):
                table.writerows(rows)
                out.flush()


def choose(cases: list[Case], old: str = "", *checks: str) -> list[Case]:
    """The cases of which one of these checks said something in an older file; all without such a file."""
    if not old:
        return cases
    said = {(row["set"], row["case"]) for row in read(Path(old)) if row["check"] in checks}
    return [case for case in cases if (case.set, case.name) in said]


def limit_to(names: list[str]) -> None:
    """Make no other checks than these; none: all."""
    for group in (registry.SOURCE, registry.READ, registry.PROBED):
        for name in set(group) - set(names) if names else ():
            del group[name]


def warm_up() -> None:
    """Load what a first diagnosis loads, once for all processes that are forked from this one."""
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        diagnosing.diagnose(torch.nn.TransformerEncoderLayer(16, 2, 16))
        for case in wild.cases(["gpt", "moco"]):
            wild.diagnosis(case.module, "broken")


def _examine_pair(pair: tuple[Case, str]) -> list[Row]:
    return examine(*pair)


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


if __name__ == "__main__":
    main()
