"""Reads rows from any source: CSV, TSV, JSON lines, Parquet, a data set of the hub, a DataFrame, dicts.

`sources.py` reads them; this file takes the columns that a task needs, and reports the rows that cannot be used.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError, brief
from headwise.language import Sentence, join, sentence_of
from headwise.tasks.rows.labels import read_labels, write_number

if TYPE_CHECKING:
    from headwise.tasks.rows.sources import Table

LISTED = 12  # numbers of rows named in one sentence
READ_IN_PART = "read in part"


@dataclass(frozen=True)
class Data:
    """Columns of one length, under the names that the task uses ("text", even if the file has "sentence").

    Args:
        name: the name in messages: the file's name, or "the frame".
        columns: each a list; all of one length.
        numbers: the number of each row in messages (line 1 of a CSV is its header).
        left_out: notes on rows that were skipped, with the reason, and on changes in other rows, one sentence each.
        fingerprint: a fingerprint of the source, the same for the same content.
        unit: the unit of `numbers`: "line" of a text file, or "row" of anything else, from 1 in files and 0 in memory.
        reasons: why rows were left out -> the numbers of these rows.
    """

    name: str
    columns: dict[str, list[Any]]
    numbers: list[int]
    left_out: tuple[str, ...] = ()
    fingerprint: str = ""
    unit: str = "row"
    reasons: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: Sequence[int]) -> Data:
        """Return only the rows with these indices, in the order of the indices."""
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return replace(self, columns=columns, numbers=[self.numbers[row] for row in rows])

    def without(self, reasons: Mapping[int, str]) -> Data:
        """Return all rows except some, with a sentence for each reason added to `left_out`.

        Args:
            reasons: the index of a row to leave out (0 is the first) -> the reason, such as "no text".

        Raises:
            NoUsableRows: no row is left.
        """
        if not reasons:
            return self
        by_reason = group_numbers(reasons, self.numbers)
        sentences = tuple(left_out(len(numbers), numbers, reason, self.unit) for reason, numbers in by_reason.items())
        kept = [row for row in range(len(self)) if row not in reasons]
        whole = replace(self, left_out=(*self.left_out, *sentences), reasons={**self.reasons, **by_reason})
        if not kept:
            raise NoUsableRows(whole)
        return whole.take(kept)

    def split(self, share: float, seed: int, *, by: str | None = None) -> tuple[Data, Data]:
        """Split the rows at random in two parts, of at least one row each; the second has the fraction `share`.

        Both keep the order of the rows. Only the first part has the notes on rows left out, so that nothing is reported
        twice.

        Args:
            share: the fraction of the rows in the second part.
            seed: the same seed draws the same rows.
            by: a column of labels. Each label is divided in the same proportion, with at least one row in each part if
                it has two rows.

        Raises:
            ArgumentError: fewer than two rows.
        """
        if len(self) < 2:
            raise ArgumentError(
                "{name}: expected at least 2 rows, one to learn from and one to choose the best weights by. "
                "Received: {count}; give more rows, or validation=FILE",
                name=self.name,
                count=len(self),
            )
        held = min(max(round(share * len(self)), 1), len(self) - 1)
        labels = self.columns[by] if by is not None else [None] * len(self)
        second = _draw(labels, held, random.Random(seed))
        chosen = set(second)
        first = [row for row in range(len(self)) if row not in chosen]
        return self.take(first), replace(self.take(second), left_out=())

    def split_groups(self, column: str, share: float, seed: int) -> tuple[Data, Data]:
        """Split like `split`, with `share` of the values of a column: rows with the same value stay together.

        Raises:
            ArgumentError: fewer than two different values.
        """
        values = list(dict.fromkeys(self.columns[column]))
        if len(values) < 2:
            raise ArgumentError(
                "{name}: expected at least 2 different {column}s, one to learn from and one to choose the best "
                "weights by. Received: {count}. Add rows, or pass validation=FILE",
                name=self.name,
                column=column,
                count=len(values),
            )
        held = set(Data(self.name, {column: values}, [*range(len(values))]).split(share, seed)[1].columns[column])
        rows: tuple[list[int], list[int]] = ([], [])
        for row, value in enumerate(self.columns[column]):
            rows[value in held].append(row)
        return self.take(rows[0]), replace(self.take(rows[1]), left_out=())


def grouped(names: Iterable[Any]) -> dict[Any, list[int]]:
    """Return a dict: name -> the indices of the rows that have this name, in order."""
    found: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        found.setdefault(name, []).append(row)
    return found


def _draw(labels: Sequence[Any], count: int, random: random.Random) -> list[int]:
    """Draw `count` rows at random, each label in proportion (a few more, if there are many labels); in order."""
    rows = grouped(labels)
    counts = _shares([len(some) for some in rows.values()], count)
    if not any(counts):  # no label has two rows
        return sorted(random.sample(range(len(labels)), count))
    return sorted(row for some, n in zip(rows.values(), counts, strict=True) for row in random.sample(some, n))


def _shares(sizes: Sequence[int], count: int) -> list[int]:
    """Divide `count` rows over groups in proportion to their sizes: at least one of each group, never the whole group.

    A group of one row gives none: the row belongs to the training data.
    """
    exact = [size * count / sum(sizes) for size in sizes]
    found = [min(max(int(share), 1), size - 1) for share, size in zip(exact, sizes, strict=True)]
    # The remainder of rounding goes to the groups that lost most by it (Hamilton's method).
    for place in sorted(range(len(sizes)), key=lambda place: int(exact[place]) - exact[place]):
        if sum(found) < count and found[place] < sizes[place] - 1 and found[place] <= exact[place]:
            found[place] += 1
    return found


class NoUsableRows(ArgumentError):  # noqa: N818 (nothing went wrong but the data)
    """Raised if all rows were left out. The attribute `data` has the rows and the reasons."""

    def __init__(self, data: Data) -> None:
        super().__init__(
            Sentence("{name}: no row can be used: {reasons}").format(name=data.name, reasons=join(data.left_out, "; "))
        )
        self.data = data


def read_table(
    source: Any,
    columns: Mapping[str, str],
    *,
    texts: Sequence[str] = (),
    labels: Sequence[str] = (),
    turns: Sequence[str] = (),
) -> Data:
    """Read the requested columns of a source, with all rows that can be used.

    Cells are as in the source. In a column of objects, `{"translation": {"en": …}}`, a column "translation.en" or "en"
    is an entry of each. Cells of a CSV or TSV file are text, also 01, NA and null: a task that reads numbers
    converts them. If columns are requested as "1", "2", … they are counted, and the first line of a CSV or TSV file is
    then an ordinary row, unless it has these names.

    Args:
        source: the path of a CSV, TSV, JSON, JSON lines, Parquet or plain text file (also .gz; a text file has one
            column, with its lines, which may be requested by any name), the name of a data set on the hub ("name",
            "name:split" or "name/config:split"), a pandas frame, a `datasets.Dataset`, a dict of lists, or a list of
            dicts. `Data` is returned unchanged.
        columns: the task's name for a column -> its name in the source.
        texts: the task's names of text columns: numbers become text, and rows with an empty text are left out.
        labels: those of `texts` that have labels: if all of them are numbers, 1, 1.0 and "1.0" are the label "1".
        turns: those of `texts` whose cells may also be lists of turns, which become lines.

    Raises:
        FileError: the file does not exist, or cannot be read.
        ArgumentError: a missing column (the message lists the columns), one column for two purposes, no rows, a text in
            bytes that are not UTF-8.
        DtypeError: `source` has no rows.
    """
    from headwise.tasks.rows.sources import open_table

    if isinstance(source, Data):
        return source
    check_different(columns)
    table = open_table(source, tuple(columns.values()))
    if table.plain and len(columns) == 1:
        columns = dict.fromkeys(columns, "text")
    if not table.numbers:  # an empty list has no columns either
        raise ArgumentError("{name}: there are no rows in it", name=table.name)
    cells = {name: take_column(table, column) for name, column in columns.items()}
    cells |= {name: [*map(join_turns, cells[name])] for name in turns if name in cells}
    taken = {name: as_texts(table, columns[name], cells[name]) if name in texts else cells[name] for name in cells}
    taken |= {name: read_labels(taken[name]) for name in labels if name in taken}
    data = Data(table.name, taken, table.numbers, table.notes, fingerprint=table.fingerprint, unit=table.unit)
    empty: dict[int, str] = {}
    for name in texts:
        for row, (cell, text) in enumerate(zip(cells[name], data.columns[name], strict=True)):
            if not text.strip():
                is_nested = (kind := describe_cell(cell)) in ("an object", "a list")
                told = Sentence("{kind} in place of the {name}") if is_nested else Sentence("no {name}")
                empty.setdefault(row, told.format(kind=kind, name=name))
    return data.without(empty)


def texts_in(inputs: Any) -> list[Any] | None:
    """Return the inputs of `predict` as a list, if they are one or several texts; None for a table or a file."""
    given = [inputs] if isinstance(inputs, str) and not Path(inputs).is_file() else inputs
    is_table = not isinstance(given, list | tuple) or not given or isinstance(given[0], dict)
    return None if is_table else list(given)


def check_filled(texts: Sequence[Any]) -> None:
    """Raise ArgumentError if an input of `predict` or `look` is empty or not a text. Rows of tables are skipped."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ArgumentError(
                "inputs[{number}]: expected a text. Received: {kind} {text}",
                number=number,
                kind=type(text).__name__,
                text=brief(text),
            )
        if not text.strip():
            raise ArgumentError("inputs[{number}]: expected a text. Received: an empty text", number=number)


def check_different(columns: Mapping[str, str]) -> None:
    """Raise ArgumentError for a column with two purposes: nothing is learned from a text that contains its label."""
    first: dict[str, str] = {}
    for name, column in columns.items():
        if (other := first.setdefault(column, name)) != name:
            raise ArgumentError(
                "{name}: expected another column than that of {other}. Received: {column!r} for both",
                name=name,
                other=other,
                column=column,
            )


def take_column(table: Table, column: str) -> list[Any]:
    """Return the cells of a column that `find_column` finds, or of an entry of a column of objects."""
    name = find_column(table, column)
    if name in table.columns:
        return table.columns[name]
    outer = next(each for each in table.columns if name.startswith(f"{each}."))
    cells = (cell if isinstance(cell, Mapping) else {} for cell in table.columns[outer])
    return [cell.get(name.removeprefix(f"{outer}.")) for cell in cells]


def match_columns(table: Table, column: str) -> list[str]:
    """Return the names in the table that `column` can mean: of a column, or "translation.en" for an entry "en"."""
    return [column] if column in table.columns else [n for n in _list_entries(table) if f".{n}".endswith(f".{column}")]


def _list_entries(table: Table) -> list[str]:
    return [
        f"{name}.{key}"
        for name, cells in table.columns.items()
        for key in dict.fromkeys(key for cell in cells if isinstance(cell, Mapping) for key in cell)
    ]


def find_column(table: Table, column: str) -> str:
    """Return the name that `column` means, if it means one. Otherwise raise ArgumentError, which lists the columns."""
    if len(found := match_columns(table, column)) == 1:
        return found[0]
    names = [*table.columns, *_list_entries(table)]
    near = difflib.get_close_matches(column.lower(), {name.lower(): name for name in names}, n=1)
    meant = [name for name in names if near and name.lower() == near[0]]
    hint = Sentence(" Did you mean {name!r}?").format(name=meant[0]) if meant else ""
    if table.headed and not meant:
        hint = " If its first line is not a header, give columns by number: 1 is the first"
    shown = ", ".join(brief(name, 40) for name in names)
    raise ArgumentError(
        "{name}: there is no column {column!r}. The columns are: {columns}.{hint}",
        name=table.name,
        column=column,
        columns=shown or Sentence("none"),
        hint=hint,
    )


def as_text(cell: Any) -> str:
    """Convert a cell to text: a number as it is written (whole numbers without .0); "" for an empty cell or a list.

    Raises:
        ArgumentError: bytes that are not UTF-8.
    """
    cell = _listed(cell)
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bytes):
        try:
            return cell.decode()
        except UnicodeDecodeError as error:
            raise ArgumentError(
                "expected a text in UTF-8. Received: {cell}, with byte 0x{byte:02x} at offset {start}. Write "
                "the column as text",
                cell=brief(cell),
                byte=cell[error.start],
                start=error.start,
            ) from error
    if (
        isinstance(cell, list | tuple | dict)
        or cell is None
        or type(cell).__name__ in ("NAType", "NaTType")
        or cell != cell
    ):
        return ""
    return write_number(cell) if isinstance(cell, float) else str(cell)


def _listed(cell: Any) -> Any:
    """Turn an array into a list, and a number of NumPy into one of Python."""
    return cell.tolist() if hasattr(cell, "tolist") else cell


def describe_cell(cell: Any) -> str:
    """Say what a cell is: "an object", "a list", "nothing", or the value itself."""
    cell = _listed(cell)
    if isinstance(cell, list | tuple | dict):
        return "an object" if isinstance(cell, dict) else "a list"
    return brief(cell, 40) if as_text(cell) else "nothing"


def join_turns(cell: Any) -> Any:
    """Turn a list of turns, texts or objects with "content" or "value", into lines; return another cell unchanged."""
    given = _listed(cell) if isinstance(_listed(cell), list | tuple) else []
    said = [turn.get("content", turn.get("value")) if isinstance(turn, dict) else turn for turn in given]
    turns = [" ".join(turn.split()) for turn in said if isinstance(turn, str)]
    return "\n".join(turns) if turns and len(turns) == len(said) else cell


def as_texts(table: Table, column: str, cells: Sequence[Any]) -> list[str]:
    """Convert the cells of a table's column to text. Raises ArgumentError like `as_text`, and names the row."""
    found = []
    for number, cell in zip(table.numbers, cells, strict=True):
        try:
            found.append(as_text(cell))
        except ArgumentError as error:  # noqa: PERF203 (the row is known here alone)
            raise ArgumentError(
                "{name}: column {column!r}, {unit} {number}: {error}",
                name=table.name,
                column=column,
                unit=Sentence(table.unit),
                number=number,
                error=sentence_of(error),
            ) from error
    return found


def group_numbers(reasons: Mapping[int, str], numbers: Sequence[int]) -> dict[str, list[int]]:
    """Turn {index of a row: reason} into {reason: numbers of the rows}."""
    found: dict[str, list[int]] = {}
    for row in sorted(reasons):
        found.setdefault(reasons[row], []).append(numbers[row])
    return found


def cut_notes(cut: Mapping[int, str], numbers: Sequence[int], unit: str) -> tuple[str, ...]:
    """Make sentences like `1 row read in part: more than 512 tokens, the rest was cut (line 4)` from `Task.cut`."""
    by_reason = group_numbers(cut, numbers)
    return tuple(left_out(len(found), found, reason, unit, READ_IN_PART) for reason, found in by_reason.items())


def left_out(count: int, numbers: Sequence[int], reason: str, unit: str, what: str = "left out") -> str:
    """Make a sentence like `3 rows left out: no text (lines 4, 9, 17)`. Only the first few `numbers` are named."""
    shown = ", ".join(map(str, numbers[:LISTED]))
    if count > LISTED:
        shown = Sentence("{shown} and {count} more").format(shown=shown, count=count - LISTED)
    return Sentence("{count} row{s} {what}: {reason} ({unit}{s} {numbers})").format(
        count=count, s="" if count == 1 else "s", what=what, reason=reason, unit=Sentence(unit), numbers=shown
    )
