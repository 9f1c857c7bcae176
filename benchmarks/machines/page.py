"""The tables of docs/performance.md: a column for each file of figures, between the markers of each table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwise.files import replacing
from headwise.native.build import INSTRUCTION_SETS

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"
WIDEST_FIRST = [name for sets in ("x86_64", "aarch64") for name in reversed(INSTRUCTION_SETS[sets])]
WIDE = 0.2  # of the median: a wider spread stands in brackets

File = Mapping[str, Any]  # what scripts/bench wrote
Figures = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Table:
    """Rows of the files, and which of their figures stand in a cell."""

    rows: str
    first: str  # the heading of the first column
    cell: Callable[[Figures], list[str]]  # a dash for a figure that is not there


def ratio(figures: Figures, name: str, form: str | None = None) -> str:
    """`1.14`, or `1.14 (0.95–1.30)` where the rounds differ; three digits, or as the form says."""
    if name not in figures:
        return "–"
    median, *spread = figures[name]
    form = form or ("{:.2f}" if median < 10 else "{:.1f}" if median < 100 else "{:.0f}")
    middle, *ends = (form.format(x) for x in (median, *spread))
    return f"{middle} ({'–'.join(ends)})" if spread and spread[1] - spread[0] > WIDE * median else middle


def cosine(figures: Figures, name: str) -> str:
    return f"{int(figures[name][0] * 1e4) / 1e4:.4f}" if name in figures else "–"  # never rounded up


TABLES = {
    "attention": Table("attention", "call", lambda x: [ratio(x, "× SDPA"), ratio(x, "of the product", "{:.0%}")]),
    "kernels": Table("attention", "call", lambda x: [ratio(x, "× torch kernel"), ratio(x, "× FlexAttention")]),
    "statistics": Table("statistics", "statistics", lambda x: [ratio(x, "× forward"), ratio(x, "× SDPA")]),
    "decoding": Table(
        "decoding", "keys and values", lambda x: [ratio(x, "of the bandwidth", "{:.0%}"), ratio(x, "× SDPA")]
    ),
    "smallest call": Table(
        "smallest call", "µs", lambda x: [ratio(x, "headwise", "{:.1f}"), ratio(x, "sdpa", "{:.1f}")]
    ),
    "encoding": Table(
        "encoding", "", lambda x: [ratio(x, "time"), *(cosine(x, name) for name in ("cosine, least", "cosine, mean"))]
    ),
    "one sentence": Table(
        "one sentence", "ms", lambda x: [ratio(x, "ms", "{:.1f}"), ratio(x, "in reverse order", "{:.1f}")]
    ),
}


def read(folder: Path) -> dict[str, File]:
    """The files of a folder by their names, without their endings; those of the widest instruction sets first."""

    def place(name: str) -> tuple[bool, int, str]:
        used = name.partition("-on-")[0]
        return "-on-" in name, WIDEST_FIRST.index(used) if used in WIDEST_FIRST else len(WIDEST_FIRST), name

    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")}
    return {name: found[name] for name in sorted(found, key=place)}


def fill(document: Path, files: Mapping[str, File]) -> None:
    """Write the tables of the files into a document."""
    text = filled(document.read_text(encoding="utf-8"), files)
    with replacing(document) as part:
        part.write_text(text, encoding="utf-8")


def filled(text: str, files: Mapping[str, File]) -> str:
    """The text with the tables of the files between `<!-- machines: NAME -->` and `<!-- machines: end -->`."""

    def made(match: re.Match[str]) -> str:
        name = match[1]
        lines = machines(files) if name == "all" else table(TABLES[name], files)
        return "\n".join([f"<!-- machines: {name} -->", *lines, "<!-- machines: end -->"])

    return re.sub(r"<!-- machines: ([\w ]+) -->\n.*?<!-- machines: end -->", made, text, flags=re.DOTALL)


def table(given: Table, files: Mapping[str, File]) -> list[str]:
    """The lines of a table. Rows and columns without a figure are left out."""
    cells: dict[str, dict[str, str]] = {}  # the cells of a row, by the names of the files
    works: list[str] = []  # a row that only some files have stands after the row that it has there
    for name, file in files.items():
        at = 0
        for row in file["rows"]:
            parts, work = given.cell(row["figures"]), row["work"]
            if row["table"] == given.rows and set(parts) != {"–"}:
                if work not in works:
                    works.insert(at, work)
                at = works.index(work) + 1
                cells.setdefault(work, {})[name] = " · ".join(parts)
    shown = [name for name in files if any(name in row for row in cells.values())]
    heads = [given.first, *(f"`{name}`<br>{machine(files[name])}<br>{files[name]['about']['date']}" for name in shown)]
    return lines(heads, [[work, *(cells[work].get(name, "–") for name in shown)] for work in works])


def machines(files: Mapping[str, File]) -> list[str]:
    """The lines of the table of the machines."""
    rows = []
    for name, file in files.items():
        about = file["about"]
        notes = [about["carried over"]] if "carried over" in about else []
        if "-on-" in name:
            held = ["HEADWISE_NATIVE", *about.get("held", [])]
            notes.append(f"held to this set by {', '.join(f'`{each}`' for each in held)}; other peers are not")
        notes += ["other programs ran beside"] if about.get("busy") else []
        notes += [f"not finished: {', '.join(about['unfinished'])}"] if about.get("unfinished") else []
        notes += [f"missing: {', '.join(about['missing'])}"] if about.get("missing") else []
        peers = ", ".join(f"{peer} {version}" for peer, version in about.get("peers", {}).items())
        versions = f"torch {about['torch']}, headwise {about['headwise']}{peers and f', {peers}'}"
        rows.append([f"`{name}`", machine(file), about["date"], versions, "; ".join(notes) or "–"])
    return lines(["instruction set", "machine", "date", "versions", "notes"], rows)


def machine(file: File) -> str:
    return re.sub(r"\((R|TM)\)| Processor| CPU\b", "", file["about"]["machine"])


def lines(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(each)} |" for each in (heads, ["---"] * len(heads), *rows)]
