"""The places of tokens on a map that is not square: row = i // width, column = i % width.

With the height in the place of the width every shape fits, and on square maps the result is right. All tokens are made
alike: then scores must depend on how many rows and columns two tokens are apart, and on nothing else, as relative
positions (rotations, for example) promise. If they do so only for rows and columns that are counted by the height, it
is this that the code has in mind.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.calling.forward_arguments import sides
from headwise.doctor.calling.way import MAP, MAPS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.anatomy import look

FINDINGS = ("grid-transposed",)

_SAME, _OTHER = 1e-3, 2e-2  # how far scores vary that should be the same, relative to the range of all scores


def check(patient: Patient) -> Iterator[Finding]:
    """Make all tokens alike, and look what their scores depend on."""
    height, width = _sides(patient)
    length = height * width
    alike = look(patient, batch=1, length=length, edit=lambda x: x.each(lambda y: y[:, :1].expand_as(y).clone()))
    for site in alike.sites:
        if site.grid is None or site.scores.shape[-2:] != (length, length):
            continue
        words = transposed(site.scores[0].double(), height, width)
        if words:
            yield Finding(
                "grid-transposed",
                "bug",
                f"on a map of {height} rows and {width} columns the scores of tokens that are alike depend on their "
                f"distance by {words}: the height stands where the width should",
                "row = index // width, column = index % width",
                site.softmax.where,
                numbers={"height": float(height), "width": float(width)},
            )
            return


def transposed(scores: Tensor, height: int, width: int) -> str:
    """How scores [H, N, N] count rows and columns, if they do so with the height where the width should be; else ""."""
    at = torch.arange(height * width)
    if varies(scores, at // width, at % width) < _OTHER:
        return ""
    wrong = ((height, height), (width, height), (height, width))
    met = (f"row = i // {by}, column = i % {of}" for by, of in wrong if varies(scores, at // by, at % of) < _SAME)
    return next(met, "")


def _sides(patient: Patient) -> tuple[int, int]:
    """Rows and columns of a map that is not square: those that forward is told, or that the constructor states."""
    interface = patient.interface
    if interface.takes == "self":
        told = (name for name, _ in interface.way.extras)
        if not interface.length and (
            interface.way.layout in MAPS or any(names.GRID.search(x) or names.simple(x) in names.SIDES for x in told)
        ):
            return sides(MAP)
        for name, argument in inspect.signature(type(patient.module).__init__).parameters.items():
            stated = getattr(patient.module, name, argument.default)
            if names.GRID.search(name) and isinstance(stated, (tuple, list)) and len(stated) == 2:
                height, width = stated
                if height != width and height * width == interface.length:
                    return height, width
    raise NotApplicable("it is not told the sides of a map")


def varies(scores: Tensor, row: Tensor, column: Tensor) -> float:
    """How far the scores [H, N, N] of pairs that are as many rows and columns apart vary."""
    apart = (row[:, None] - row) * 2 * len(row) + column[:, None] - column
    kinds, kind = apart.flatten().unique(return_inverse=True)
    high, low = (
        torch.zeros(len(scores), len(kinds), dtype=scores.dtype).scatter_reduce(
            1, kind.expand(len(scores), -1), scores.flatten(1), how, include_self=False
        )
        for how in ("amax", "amin")
    )
    return float((high - low).max() / (scores.amax() - scores.amin()).clamp(min=1e-12))
