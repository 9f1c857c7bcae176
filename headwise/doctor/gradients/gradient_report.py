"""A gradient check as text for people: one line per tensor, and a conclusion."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headwise.doctor.comparing.comparison_report import number
from headwise.doctor.gradients.checked import CheckedGradients, TensorGradient
from headwise.doctor.telling.report import indented
from headwise.language import Sentence, printable, said

_SAID = {"blocked": "no gradient", "unused": "not used"}  # of the others, the verdict itself
_STYLE = {"wrong": "bold red", "blocked": "bold red", "unused": "yellow", "frozen": "dim"}


def gradient_report(found: CheckedGradients) -> Iterator[RenderableType]:
    """The whole result of a gradient check, for rich to print."""
    yield Text(printable(said("Gradients of {found.subject}, in {found.dtype}", found=found)), style="bold")
    yield from indented(found.notes, style="dim")
    if found.tensors:
        yield Text()
        yield _table(found)
    yield Text()
    yield Text(printable(said(conclusion(found))), style="bold green" if found.right else "bold red")


def conclusion(found: CheckedGradients) -> str:
    """The conclusion, in one sentence."""
    if found.problem:
        return Sentence("There are no gradients: {problem}.").format(problem=found.problem)
    if found.wrong:
        first = max(found.wrong, key=lambda x: x.difference)
        return Sentence("{wrong} of {of} gradients are wrong. {sentence}").format(
            wrong=len(found.wrong), of=len(found.tensors), sentence=_sentence(first)
        )
    checked = sum(x.checked for x in found.tensors)
    largest = max((x.difference for x in found.tensors), default=0.0)
    kinks = sum(x.kinks for x in found.tensors)
    more = (
        Sentence(" {kinks} were not judged, because the output has no slope there.").format(kinks=kinks)
        if kinks
        else ""
    )
    return Sentence("The gradients are right: {checked} numbers checked, largest error {number}.{more}").format(
        checked=checked, number=number(largest), more=more
    )


def _sentence(x: TensorGradient) -> str:
    at: str = " along a random direction"
    if x.at:
        at = Sentence(" at {where}").format(where=list(x.at))
    if x.verdict == "blocked":
        return Sentence("{x.name} gets no gradient, but the output changes with it: by {x.numerical:.6g}{at}.").format(
            x=x, at=at
        )
    return Sentence(
        "The gradient of {x.name}{at} is {x.autograd:.6g}; the output changes by {x.numerical:.6g}."
    ).format(x=x, at=at)


def _table(found: CheckedGradients) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(said("tensor"), overflow="fold")
    for name in ("shape", "checked", "largest error", "at", "autograd", "numerical"):
        table.add_column(said(name), justify="right")
    table.add_column("")
    for x in found.tensors:
        at = " ".join(map(str, x.at)) or said("direction")
        numbers = (number(x.difference), at, f"{x.autograd:.4g}", f"{x.numerical:.4g}")
        shape = " × ".join(map(str, x.shape)) or "1"
        verdict = said(_SAID.get(x.verdict, x.verdict))
        table.add_row(printable(x.name), shape, str(x.checked), *numbers, verdict, style=_STYLE.get(x.verdict))
    return table
