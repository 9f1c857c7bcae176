"""A comparison as text for people: the mapped weights, the largest differences, and the first differing operation."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headwise.doctor.comparing.comparison import Differences
from headwise.doctor.comparing.parting import Operation, Parting
from headwise.doctor.telling.report import indented
from headwise.language import Sentence, printable, said


def comparison_report(found: Differences) -> Iterator[RenderableType]:
    """The whole result of a comparison, for rich to print."""
    yield Text(printable(said("{found.first} and {found.second}, in {found.dtype}", found=found)), style="bold")
    yield from indented(found.mapping.values())
    yield from indented(found.notes, style="dim")
    yield Text()
    yield _table(found)
    problems = dict.fromkeys(Sentence("{row.mask}: {row.problem}").format(row=row) for row in found.rows if row.problem)
    if problems:
        yield Text(said("not compared"), style="bold dim")
        yield from indented(problems)
    yield Text()
    yield Text(printable(said(conclusion(found))), style="bold green" if found.same else "bold red")
    if found.parted:
        yield from _parted(found)


def conclusion(found: Differences) -> str:
    """The conclusion, in one sentence."""
    left = len(found.rows) - len(found.compared)
    more = (
        Sentence(" {left} of {count} cases could not be compared.").format(left=left, count=len(found.rows))
        if left
        else ""
    )
    if found.same:
        return Sentence("They compute the same: largest difference {number}.{more}").format(
            number=number(found.largest), more=more
        )
    apart = [row for row in found.compared if not row.same]
    return Sentence(
        "They do not compute the same in {apart} of {count} cases: largest difference {number}.{more}"
    ).format(apart=len(apart), count=len(found.compared), number=number(found.largest), more=more)


def number(x: float | None) -> str:
    """ "3.1e-16"; "-" where there is none."""
    if x is None or math.isnan(x):
        return "-"
    return "0" if x == 0 else "inf" if math.isinf(x) else f"{x:.1e}"


def _table(found: Differences) -> Table:
    """A line per mask: the largest differences over all shapes."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(said("mask"))
    for name in ("shapes", "output", "weights", "gradients of inputs", "of parameters"):
        table.add_column(said(name), justify="right")
    for mask in dict.fromkeys(row.mask for row in found.rows):
        rows = [row for row in found.compared if row.mask == mask]
        style = "red" if any(not row.same for row in rows) else ""
        numbers = [
            [row.output for row in rows],
            [row.weights for row in rows if row.weights is not None],
            [row.inputs for row in rows],
            [row.parameters for row in rows],
        ]
        table.add_row(said(mask), str(len(rows)), *(number(max(x, default=None)) for x in numbers), style=style)
    return table


def _parted(found: Differences) -> Iterator[RenderableType]:
    parted = found.parted
    assert parted is not None
    agreed = Sentence("agree in {agreed}, and ").format(agreed=", ".join(parted.agreed)) if parted.agreed else ""
    told = Sentence("They {agreed}differ at the {stage}{by}.")
    yield Text(printable(said(told.format(agreed=agreed, stage=Sentence(parted.stage), by=_by(parted)))))
    for name, operation in ((found.first, parted.first), (found.second, parted.second)):
        if operation is not None:
            yield from indented([f"{name}: {_said(operation)}"])
    worst = next((row.worst for row in found.compared if row.worst), "")
    if parted.stage == "gradients" and worst:
        yield from indented([Sentence("the gradient that differs most: {worst}").format(worst=worst)])


def _by(parted: Parting) -> str:
    if parted.ratio is not None and parted.ratio > 0:
        return Sentence(": those of the first are {ratio:.4g} times those of the second").format(ratio=parted.ratio)
    if math.isfinite(parted.difference):
        return Sentence(", by {number}").format(number=number(parted.difference))
    return ", not by a constant factor"


def _said(operation: Operation) -> str:
    at = f" at {operation.where}" if operation.where else ""
    code = f"    {operation.where.code}" if operation.where and operation.where.code else ""
    return f"{operation.name} {list(operation.shape)}{at}{code}"
