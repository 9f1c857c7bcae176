"""docs/results.md and docs/results.json: a table of goals at the top, then a section for each experiment.

An experiment that ran again replaces its own section and its own rows; the others stay as they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headwise.files import replacing

INTRO = """# Results

Scores of `headwise train` on real data, and the commands that produce them. `scripts/results` runs the commands and
writes this page; `scripts/results NAME` runs one experiment again and replaces its section and rows. All numbers are
also in [results.json](results.json). Times are of whole commands, with startup and saving, on the machine that the
section names.
"""


@dataclass(frozen=True)
class Goal:
    """The goal for one number, and the number that was reached."""

    what: str
    wanted: str
    reached: str
    met: bool


@dataclass(frozen=True)
class Table:
    """Cells are text: numbers are already rounded."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""


@dataclass(frozen=True)
class Result:
    """The result of an experiment.

    Args:
        name: of the experiment, the word that `scripts/results` takes.
        title: what it is about, in a few words.
        data: which rows were used for training and for the test, in sentences.
        commands: the commands that repeat it.
        goals: rows of the table at the top.
        tables: scores beside baselines and beside what others published.
        figures: every number, for results.json.
        notes: remarks, one sentence each, such as why a goal was missed.
        about: seed, date, machine and versions, as `machine.about` has them.
    """

    name: str
    title: str
    data: str
    commands: tuple[str, ...]
    goals: tuple[Goal, ...]
    tables: tuple[Table, ...]
    about: dict[str, str]
    figures: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def at_least(what: str, reached: float, wanted: float, digits: int = 3) -> Goal:
    return Goal(what, f"≥ {wanted:.{digits}f}", f"{reached:.{digits}f}", reached >= wanted)


def at_most(what: str, reached: float, wanted: float, digits: int = 3, unit: str = "") -> Goal:
    return Goal(what, f"≤ {wanted:.{digits}f}{unit}", f"{reached:.{digits}f}{unit}", reached <= wanted)


def more_than(what: str, reached: float, trivial: float, digits: int = 3) -> Goal:
    return Goal(what, f"> {trivial:.{digits}f}, trivial", f"{reached:.{digits}f}", reached > trivial)


def less_than(what: str, reached: float, trivial: float, digits: int = 3) -> Goal:
    return Goal(what, f"< {trivial:.{digits}f}, trivial", f"{reached:.{digits}f}", reached < trivial)


def write(result: Result, folder: Path, order: Sequence[str]) -> None:
    """Put the result into results.md and results.json of the folder; sections stand in `order`."""
    page, numbers = folder / "results.md", folder / "results.json"
    kept: dict[str, Any] = json.loads(numbers.read_text(encoding="utf-8")) if numbers.exists() else {}
    kept[result.name] = {key: value for key, value in asdict(result).items() if key != "name"}
    kept = {name: kept[name] for name in [*order, *kept] if name in kept}
    found = sections(page.read_text(encoding="utf-8")) if page.exists() else {}
    found[result.name] = section(result)
    names = [name for name in dict.fromkeys([*order, *found]) if name in found]
    text = "\n".join([INTRO, goal_table(kept), *(found[name] for name in names)])
    for path, content in ((page, text), (numbers, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")):
        with replacing(path) as part:
            part.write_text(content, encoding="utf-8")


def sections(page: str) -> dict[str, str]:
    """The sections of a page by the first word of their heading, as they are written."""
    parts = re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]
    return {re.split(r"[\s:]", part[3:], maxsplit=1)[0]: part.rstrip("\n") + "\n" for part in parts}


def goal_table(results: dict[str, Any]) -> str:
    rows = [
        (
            f"[{name}](#{anchor(name, result['title'])})",
            goal["what"],
            goal["wanted"],
            goal["reached"],
            _word(goal["met"]),
        )
        for name, result in results.items()
        for goal in result["goals"]
    ]
    return table(Table(("experiment", "what", "goal", "reached", ""), tuple(rows)))


def section(result: Result) -> str:
    """The section of one experiment, from its heading to the line with date and machine."""
    about = dict(result.about)
    seed, date, where = about.pop("seed"), about.pop("date"), ", ".join(f"{k} {v}".strip() for k, v in about.items())
    commands = "\n".join(["```sh", *result.commands, "```\n"])
    blocks = [f"## {result.name}: {result.title}\n", f"{result.data}\n", commands, *map(table, result.tables)]
    if result.notes:
        blocks.append("".join(f"- {note}\n" for note in result.notes))
    return "\n".join([*blocks, f"Seed {seed}, {date}. {where}.\n"])


def anchor(name: str, title: str) -> str:
    """The anchor of the heading of a section."""
    return re.sub(r"[^\w\- ]", "", f"{name}: {title}".lower()).replace(" ", "-")


def table(given: Table) -> str:
    """A table in Markdown; columns of numbers are right-aligned."""
    lines = [given.header, *given.rows]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(given.header))]
    columns = [[line[i] for line in given.rows] for i in range(len(given.header))]
    numbers = [any(cells) and all(re.fullmatch(r"[\d,.]*", cell) for cell in cells) for cells in columns]
    rule = ["-" * (width - 1) + (":" if number else "-") for width, number in zip(widths, numbers, strict=True)]
    written = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (given.header, rule, *given.rows)
    ]
    return "\n".join([*([f"**{given.title}**\n"] if given.title else []), *written, ""])


def _word(met: bool) -> str:
    return "reached" if met else "**missed**"
