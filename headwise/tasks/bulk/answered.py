"""A table of input rows together with the prediction of a task for each row."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError
from headwise.language import join
from headwise.tasks.rows.gallery import Question
from headwise.tasks.rows.names import name_beside
from headwise.tasks.rows.sources import Table
from headwise.tasks.rows.tables import LISTED, READ_IN_PART, Data, NoUsableRows, group_numbers, left_out, match_columns

if TYPE_CHECKING:
    from headwise.tasks.task import Task

_ANY_TEXT = "a [MASK]"  # a valid input for every text task


@dataclass(frozen=True)
class Answered:
    """The columns of a table, then the columns of the predictions (None in rows that the task cannot use).

    Args:
        count: number of rows with a prediction.
        left_out: reason -> numbers of the rows without a prediction; `unit` says what these numbers count, such as
            "line".
        cut: reason -> numbers of the rows that were read only in part.
        arrow: the original columns of a Parquet file as Arrow arrays.
        tokens: number of tokens that were read, if they are counted.
    """

    columns: dict[str, list[Any]]
    count: int
    left_out: Mapping[str, Sequence[int]]
    unit: str
    cut: Mapping[str, Sequence[int]] = field(default_factory=dict)
    arrow: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0

    def note(self) -> Note:
        """Return a summary, which is written to a file beside the file of the rows."""
        left_out, cut = (
            [(reason, len(numbers), list(numbers[:LISTED])) for reason, numbers in reasons.items()]
            for reasons in (self.left_out, self.cut)
        )
        rows = len(next(iter(self.columns.values())))
        return Note(list(self.columns), rows, self.count, self.unit, left_out, cut, self.tokens)


@dataclass(frozen=True)
class Note:
    """A summary of some output rows: column names, numbers of rows and predictions, why predictions are missing.

    Args:
        left_out, cut: as for `Answered`, but (reason, count of rows, numbers of the first few rows).
        tokens: as for `Answered`.
        checksum: the checksum of the file with these rows.
    """

    columns: list[str]
    rows: int
    count: int
    unit: str
    left_out: Sequence[tuple[str, int, list[int]]]
    cut: Sequence[tuple[str, int, list[int]]] = ()
    tokens: int = 0
    checksum: str = ""


def sum_up(name: str, notes: Iterable[Note]) -> tuple[list[str], int, tuple[str, ...]]:
    """Add up the summaries of all parts of a file. Returns (column names, number of rows, sentences).

    There is one sentence for each reason why predictions are missing or rows were cut.

    Args:
        name: the file's name, for messages.

    Raises:
        ArgumentError: no row has a prediction.
    """
    columns, unit, rows, count = [], "row", 0, 0
    found: dict[tuple[str, str], tuple[int, list[int]]] = {}
    for note in notes:
        columns, unit, rows, count = note.columns, note.unit, rows + note.rows, count + note.count
        for what, reasons in (("without a prediction", note.left_out), (READ_IN_PART, note.cut)):
            for reason, more, numbers in reasons:
                before, listed = found.get((what, reason), (0, []))
                found[what, reason] = (before + more, (listed + numbers)[:LISTED])
    sentences = tuple(
        left_out(number, listed, reason, unit, what) for (what, reason), (number, listed) in found.items()
    )
    if not count:
        raise ArgumentError("{name}: no row can be used: {reasons}", name=name, reasons=join(sentences, "; "))
    return columns, rows, sentences


def answer(task: Task[Any], source: Any, table: Table, wanted: Sequence[str]) -> Answered:
    """Predict for all rows of a table, in order.

    A task may read rows from the source that are not rows of the table (the questions of a SQuAD file, the documents of
    a text). Then the result has these rows with their predictions.

    Args:
        source: the input of `task.read`; usually the table itself.

    Raises:
        FileError, ArgumentError: a column is missing.
    """
    try:
        data = task.asked(source)
        answers = task.predict(data)
    except NoUsableRows as error:
        data, answers = error.data.take([]), []
        names = list(_nothing(task, error.data))
        cut: dict[str, list[int]] = {}
    else:
        names = list(answers[0])
        cut = group_numbers(task.cut(data), data.numbers)
    of_table = source is table and (table.plain or any(match_columns(table, name) for name in wanted))
    given, numbers = (table.columns, table.numbers) if of_table else (data.columns, data.numbers)
    places = {number: place for place, number in enumerate(data.numbers)}
    found = [answers[places[number]] if number in places else dict.fromkeys(names) for number in numbers]
    beside = name_beside(names, given)
    columns = {**given, **{beside[name]: [row[name] for row in found] for name in names}}
    return Answered(columns, len(answers), data.reasons, data.unit, cut, table.arrow if of_table else {})


def _nothing(task: Task[Any], data: Data) -> dict[str, Any]:
    """Predict for a dummy input, only to learn the names of the prediction's columns."""
    one = data.take([0])
    if not any(isinstance(cell, Question) for (cell,) in one.columns.values()):
        one = dataclasses.replace(one, columns={name: [_ANY_TEXT] for name in one.columns})
    (found,) = task.predict(one)
    return found
