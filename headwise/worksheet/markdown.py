"""Writes the steps as Markdown: a table for each matrix, with the formula that computes its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headwise.language import said
from headwise.worksheet.description import CONSTANTS, LETTERS, Matrix, Step, Steps
from headwise.worksheet.formulas import readable

_SPECIAL = str.maketrans({letter: f"\\{letter}" for letter in "\\`*_{}[]<>|#~$!&"})


def write_markdown(sheet: Steps, path: Path) -> None:
    """Write the steps of a worksheet to a file, in UTF-8."""
    path.write_text("\n".join(_lines(sheet)), encoding="utf-8", newline="\n")


def _lines(sheet: Steps) -> Iterator[str]:
    yield f"# {_plain(sheet.title)}"
    yield from ("", _plain(sheet.about), "")
    yield said(
        "In the formulas `X[i,j]` is the number of X in the same row and column, `X[i,:]` the same row, `X[:,j]` the"
    )
    yield from (said("same column. Numbers without a formula are inputs, parameters and options."), "")
    yield from (said("| dimension | what it counts | size |"), "|---|---|---|")
    for letter, size in sheet.dimensions:
        yield f"| {letter} | {said(LETTERS[letter])} | {size} |"
    yield ""
    for number, step in enumerate(sheet, start=1):
        yield from _step(number, step)
    for note in sheet.notes:
        yield from (_plain(note), "")


def _step(number: int, step: Step) -> Iterator[str]:
    yield f"## {number}. {_plain(step.heading)}"
    yield from ("", _plain(step.sentence), "", _code(step.symbols), "")
    for matrix in step.matrices:
        yield from _matrix(matrix)


def _matrix(matrix: Matrix) -> Iterator[str]:
    texts = () if matrix.formula is None else tuple(map(readable, dict.fromkeys(matrix.formula.texts)))
    if matrix.is_number:
        origin = f" = {_code(texts[0])}" if texts else ""
        yield from (f"**{_plain(matrix.name)}**{origin} = {matrix.shown(0, 0)}", "")
        return
    origin = f" = {_code(texts[0])}" if len(texts) == 1 else said(" column by column") if texts else ""
    given = said(", given") if matrix.kind in CONSTANTS else ""
    yield from (f"**{_plain(matrix.name)}** {matrix.size}{given}{origin}", "")
    yield "| " + " | ".join([matrix.corner, *map(_plain, matrix.cols.labels)]) + " |"
    yield "|---|" + "---:|" * len(matrix.cols)
    for i, label in enumerate(matrix.rows.labels):
        numbers = (matrix.shown(i, j) for j in range(len(matrix.cols)))
        yield "| " + " | ".join([f"**{_plain(label)}**" if label else "", *numbers]) + " |"
    if len(texts) > 1:
        yield ""
        for label, text in zip(matrix.cols.labels, matrix.formula.texts, strict=True):  # type: ignore[union-attr]
            yield f"- {_plain(label)} = {_code(readable(text))}"
    yield ""


def _plain(text: str) -> str:
    """Return the text with all special characters of Markdown escaped: a token may contain any character."""
    return text.translate(_SPECIAL)


def _code(text: str) -> str:
    return f"`{text}`"
