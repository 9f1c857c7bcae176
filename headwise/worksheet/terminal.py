"""Prints the steps of a worksheet in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from headwise.language import said
from headwise.tables import make_console
from headwise.worksheet import colour
from headwise.worksheet.description import CONSTANTS, LETTERS, Matrix, Step, Steps, in_lines

GIVEN = "blue"
MARGIN, GAP = 2, 3
UNBOUNDED = 160  # the number of columns if the output is no terminal


def print_worksheet(sheet: Steps, console: Console | None = None) -> None:
    """Print the worksheet to `console`, by default to standard output."""
    if console is None:
        console = make_console(highlight=False)
        if not console.is_terminal:
            console.width = UNBOUNDED
    console.print(Text(sheet.title, style="bold"))
    console.print(Text(sheet.about))
    console.print(
        Text.assemble(
            (said("Blue"), GIVEN),
            said(" numbers are inputs, parameters and options. The others are computed by the formula above them."),
        )
    )
    sizes = "   ".join(f"{letter} = {size} {said(LETTERS[letter])}" for letter, size in sheet.dimensions)
    console.print(Text(sizes, style="dim"))
    for number, step in enumerate(sheet, start=1):
        _print_step(console, number, step)
    for note in sheet.notes:
        console.print(Text(said("note: {note}", note=note)))


def _print_step(console: Console, number: int, step: Step) -> None:
    console.print()
    console.print(Text(f"{number}  {step.heading}", style="bold underline"))
    console.print(Text(step.sentence))
    console.print(Text(step.symbols, style="italic dim"))
    room = console.width - MARGIN

    def measure_width(drawn: RenderableType) -> int:
        return Measurement.get(console, console.options, drawn).maximum + GAP

    for row in step.grid:
        for line in in_lines((_drawn(matrix, room) for matrix in row), measure_width, room):
            side_by_side = Table.grid(padding=(0, GAP, 0, 0))
            side_by_side.add_row(*line)
            console.print(Padding(side_by_side, (1, 0, 0, MARGIN), expand=False))


def _drawn(matrix: Matrix, room: int) -> RenderableType:
    """Return a matrix in a form to print, with its name, size and formula above it."""
    formula = matrix.formula
    if matrix.is_number:
        origin = f"{formula.summary} = " if formula else ""
        value = (matrix.shown(0, 0), GIVEN if matrix.kind in CONSTANTS else "")
        return Text.assemble((matrix.name, "bold"), " = ", origin, value)
    lines: list[RenderableType] = [Text.assemble((matrix.name, "bold"), f" {matrix.size}")]
    if matrix.origin:
        lines.append(Text(matrix.origin, style="dim", overflow="fold"))
    return Group(*lines, *_tables(matrix, room))


def _tables(matrix: Matrix, room: int) -> Iterator[Table]:
    """Yield tables with the numbers of a matrix: columns that do not fit into `room` go into another table below."""
    widest = max(cell_len(text) for text in (matrix.corner, *matrix.rows.labels)) + 2
    cells = [[_cell(matrix, i, j) for j in range(len(matrix.cols))] for i in range(len(matrix.rows))]
    widths = [
        max(cell_len(label), *(row[j].cell_len for row in cells)) + 2 for j, label in enumerate(matrix.cols.labels)
    ]
    start = 0
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and widest + sum(widths[start : stop + 1]) <= room:
            stop += 1
        table = Table(box=None, pad_edge=False, padding=(0, 1))
        table.add_column(Text(matrix.corner, style="dim"), justify="right", no_wrap=True)
        for label in matrix.cols.labels[start:stop]:
            table.add_column(Text(label, style="bold"), justify="right", no_wrap=True)
        for label, row in zip(matrix.rows.labels, cells, strict=True):
            table.add_row(Text(label, style="bold"), *row[start:stop])
        yield table
        start = stop


def _cell(matrix: Matrix, i: int, j: int) -> Text:
    text = Text(matrix.shown(i, j))
    if matrix.kind == "weights":
        text.stylize(f"black on #{colour.weight_colour(float(matrix.values[i, j]))}")
    elif matrix.kind in CONSTANTS:
        text.stylize(GIVEN)
    elif text.plain == "−∞":
        text.stylize("dim")
    return text
