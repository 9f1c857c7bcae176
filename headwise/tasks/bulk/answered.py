"""A table with what a task makes of each of its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.errors import ArgumentError
from headwise.tasks.rows.gallery import asked_in
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import LISTED, Data, NoUsableRows, left_out
from headwise.tasks.task import Task
from headwise.tasks.translate import columns_of

_ANY_TEXT = "a [MASK]"  # something for any task to answer


@dataclass(frozen=True)
class Answered:
    """The columns of a table, and after them those of the answers; rows that the task cannot use have None there.

    Args:
        count: how many rows have an answer.
        left_out: why the others have none -> their numbers, which count `unit`.
        arrow: of a Parquet file, its own columns as Arrow has them.
    """

    columns: dict[str, list[Any]]
    count: int
    left_out: Mapping[str, Sequence[int]]
    unit: str
    arrow: Mapping[str, Any] = field(default_factory=dict)

    def note(self) -> Note:
        """What is to be kept of it beside its rows."""
        reasons = {reason: (len(numbers), list(numbers[:LISTED])) for reason, numbers in self.left_out.items()}
        rows = len(next(iter(self.columns.values())))
        return Note(list(self.columns), rows, self.count, self.unit, reasons)


@dataclass(frozen=True)
class Note:
    """The names of the columns of some rows, how many there are, how many have an answer, and why the others do not.

    Args:
        left_out: why -> how many, and the numbers of the first.
    """

    columns: list[str]
    rows: int
    count: int
    unit: str
    left_out: dict[str, tuple[int, list[int]]]


def sum_up(name: str, notes: Iterable[Note]) -> tuple[list[str], int, tuple[str, ...]]:
    """The columns and the number of rows of what was answered in parts, and which have no answer: a sentence a reason.

    Args:
        name: of the file, for messages.

    Raises:
        ArgumentError: no row has an answer.
    """
    columns, unit, rows, count = [], "row", 0, 0
    reasons: dict[str, tuple[int, list[int]]] = {}
    for note in notes:
        columns, unit, rows, count = note.columns, note.unit, rows + note.rows, count + note.count
        for reason, (more, numbers) in note.left_out.items():
            before, listed = reasons.get(reason, (0, []))
            reasons[reason] = (before + more, (listed + numbers)[:LISTED])
    sentences = tuple(
        left_out(number, listed, reason, unit, "without an answer") for reason, (number, listed) in reasons.items()
    )
    if not count:
        raise ArgumentError(f"{name}: no row can be used: {'; '.join(sentences)}")
    return columns, rows, sentences


def wanted_by(task: Task[Any], path: Path) -> tuple[str, ...]:
    """The columns of a file that a task has names for, as `open_table` takes them."""
    if task.name == "translate":
        return tuple(columns_of(str(path), task.options).values())
    columns = [each.name for each in dataclasses.fields(task.options) if each.metadata.get("metavar") == "COLUMN"]
    return tuple(name for column in columns if (name := getattr(task.options, column)) is not None)


def answer(task: Task[Any], source: Any, table: Table, wanted: Sequence[str]) -> Answered:
    """All rows of a table, in their order. Of a source whose rows are not what is asked, such as a SQuAD file or a text
    of documents, what is asked instead: rows with the columns that the task has.

    Args:
        source: what `task.read` takes; mostly the table itself.

    Raises:
        FileError, ArgumentError: no such column.
    """
    try:
        data = _read(task, source)
        answers = task.predict(data.columns["question"] if task.name == "match" else data)
    except NoUsableRows as error:
        data, answers = error.data.take([]), []
        names = list(_nothing(task, error.data))
    else:
        names = list(answers[0])
    of_table = task.name == "match" or (source is table and any(name in table.columns for name in wanted))
    given, numbers = (table.columns, table.numbers) if of_table else (data.columns, data.numbers)
    places = {number: place for place, number in enumerate(data.numbers)}
    found = [answers[places[number]] if number in places else dict.fromkeys(names) for number in numbers]
    columns = dict(given)
    for name in names:
        columns[f"predicted {name}" if name in given else name] = [row[name] for row in found]
    return Answered(columns, len(answers), data.reasons, data.unit, table.arrow if of_table else {})


def _read(task: Task[Any], source: Any) -> Data:
    if task.name == "match":
        return asked_in(source, task.options)
    return task.read(source, task.options, targets=False)


def _nothing(task: Task[Any], data: Data) -> dict[str, Any]:
    """An answer to nothing in particular, for its names."""
    one = data.take([0])
    if task.name != "match":
        one = dataclasses.replace(one, columns={name: [_ANY_TEXT] for name in one.columns})
    (found,) = task.predict(one.columns["question"] if task.name == "match" else one)
    return found
