"""Writes the steps as a page: one HTML file without scripts or external resources, light and dark, for all screens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path

from headwise.language import language, said
from headwise.worksheet.description import CONSTANTS, LETTERS, Matrix, Step, Steps
from headwise.worksheet.formulas import readable

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_page(sheet: Steps, path: Path) -> None:
    """Write the page to a file, in UTF-8."""
    path.write_text("\n".join(_lines(sheet)), encoding="utf-8", newline="\n")


def _lines(sheet: Steps) -> Iterator[str]:
    style = resources.files(__name__.rpartition(".")[0]).joinpath("page.css").read_text("utf-8")
    title = escape(sheet.title)
    yield f'<!DOCTYPE html>\n<html lang="{language()}">\n<head>\n<meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>"
    yield f'<nav aria-label="{said("Steps")}"><ol>'
    for number, step in enumerate(sheet, start=1):
        yield f'<li><a href="#step-{number}">{escape(step.heading)}</a></li>'
    yield "</ol></nav>\n<main>"
    yield f"<header><h1>{title}</h1>\n<p>{escape(sheet.about)}</p>"
    key = said(
        "Blue numbers are inputs, parameters and options. The others are computed by the formula above them: X[i,j] is "
        "the number of X in the same row and column, X[i,:] the same row, X[:,j] the same column. Hover over a number "
        "to see all of it, and its own formula."
    )
    blue = said("Blue")
    coded = re.sub(r"X\[.,.\]", lambda name: f"<code>{name[0]}</code>", escape(key))
    coded = coded.replace(blue, f'<b class="given">{blue}</b>', 1)
    yield f'<p class="key">{coded}</p>'
    yield '<dl class="dimensions">'
    for letter, size in sheet.dimensions:
        yield f"<div><dt>{escape(letter)} = {escape(size)}</dt><dd>{escape(said(LETTERS[letter]))}</dd></div>"
    yield "</dl>"
    for note in sheet.notes:
        yield f"<p>{escape(note)}</p>"
    yield "</header>"
    for number, step in enumerate(sheet, start=1):
        yield from _step(number, step)
    yield "</main>\n</body>\n</html>\n"


def _step(number: int, step: Step) -> Iterator[str]:
    yield f'<section id="step-{number}" aria-labelledby="title-{number}">'
    yield f'<h2 id="title-{number}"><span>{number}</span> {escape(step.heading)}</h2>'
    yield f"<p>{escape(step.sentence)}</p>"
    yield f'<p class="symbols">{escape(step.symbols)}</p>'
    for row in step.grid:
        yield '<div class="row">'
        for matrix in row:
            yield from _matrix(matrix)
        yield "</div>"
    yield "</section>"


def _matrix(matrix: Matrix) -> Iterator[str]:
    if matrix.is_number:
        given = ' class="given"' if matrix.kind in CONSTANTS else ""
        origin = f"<code>{escape(matrix.formula.summary)}</code> = " if matrix.formula else ""
        yield f'<p class="number"><b>{escape(matrix.name)}</b> = {origin}<span{given}>{matrix.shown(0, 0)}</span></p>'
        return
    # A wide matrix scrolls sideways by itself, also with the keyboard.
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(matrix.name)}">'
    yield f'<table class="{matrix.kind}">'
    origin = f"<code>{escape(matrix.origin)}</code>" if matrix.origin else ""
    yield f"<caption><b>{escape(matrix.name)}</b> {escape(matrix.size)}{origin}</caption>"
    labels = "".join(f'<th scope="col">{escape(label)}</th>' if label else "<td></td>" for label in matrix.cols.labels)
    yield f"<thead><tr><td>{escape(matrix.corner)}</td>{labels}</tr></thead>\n<tbody>"
    for i, label in enumerate(matrix.rows.labels):
        cells = "".join(_cell(matrix, i, j) for j in range(len(matrix.cols)))
        head = f'<th scope="row">{escape(label)}</th>' if label else "<td></td>"
        yield f"<tr>{head}{cells}</tr>"
    yield "</tbody></table></div>"


def _cell(matrix: Matrix, i: int, j: int) -> str:
    value = float(matrix.values[i, j])
    shown = matrix.shown(i, j)
    whole = f"{value:.9g}" if value != -float("inf") else shown
    if matrix.formula is not None and not matrix.formula.whole:
        whole = f"{readable(matrix.formula.of_cell(i + 1, j + 1))} = {whole}"
    look = ' class="off"' if shown == "−∞" or (matrix.kind == "mask" and not value) else ""
    if matrix.kind == "weights":
        look = f' style="--w:{value:.3f}"'
    return f'<td{look} title="{escape(whole)}">{shown}</td>'
