"""A reshape splits axes and merges adjacent ones; it exchanges none.

`x.view(B, C, N)` of a tensor [B, N, C] runs, and no axis of the result means anything. The relative shift (Dai et al.
2019, appendix B) is the use of it that is right: of padded scores, or there and back with a row dropped in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwise.doctor.calling.way import MAP, MAPS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import Trace
from headwise.language import Sentence

FINDINGS = ("reshape-scrambles",)

Sizes = Sequence[int]


def check(patient: Patient) -> Iterator[Finding]:
    anatomy, found = patient.anatomy, None
    if patient.interface.way.layout in MAPS and patient.interface.length is None:  # rows and columns that differ
        found = _scrambled(look(patient, length=MAP).run)
    found = found or _scrambled(look(patient).run if anatomy is None else anatomy.run)
    if found is not None:
        yield found


def _scrambled(run: Trace) -> Finding | None:
    """A reshape whose sizes show that it cuts across axes."""
    for i, found in enumerate(run.reshapes):
        others = (x for j, x in enumerate(run.reshapes) if j != i)
        back = any(undoes(found.shape, found.into, x.shape, x.into) for x in others)
        if found.cuts and not found.padded and not back:
            at = next(n for n in reversed(found.shape) if n != 1)  # the second row of the last axis
            before, after = place(at, found.shape), place(at, found.into)
            return Finding(
                "reshape-scrambles",
                "bug",
                Sentence(
                    "a view or reshape of {old} to {new} exchanges no axes, it only reads the same numbers in order: "
                    "what was at {before} is at {after}"
                ).format(old=list(found.shape), new=list(found.into), before=before, after=after),
                "move the axes first, with transpose, permute or einsum, and reshape after that",
                found.where,
            )
    return None


def undoes(shape: Sizes, into: Sizes, other_shape: Sizes, other_into: Sizes) -> bool:
    """Whether one of two reshapes is the way there and the other the way back, after one row was dropped; or two, where
    the queries are every second token (Funnel, Dai et al. 2020).
    """
    there, back = changed(shape, into), changed(other_into, other_shape)
    for x, y in zip(there, back, strict=True):
        if len(x) != len(y) or not 0 < sum(abs(a - b) for a, b in zip(x, y, strict=True)) <= 2:
            return False
    return True


def changed(shape: Sizes, into: Sizes) -> tuple[list[int], list[int]]:
    """The sizes before and after, without ones, and without those in front and at the end that stay."""
    before, after = ([n for n in x if n != 1] for x in (shape, into))
    for end in (0, -1):
        while before and after and before[end] == after[end]:
            before.pop(end)
            after.pop(end)
    return before, after


def place(at: int, shape: Sizes) -> list[int]:
    """The indices of the number that is the `at`-th in memory."""
    found: list[int] = []
    for n in reversed(shape):
        at, rest = divmod(at, n)
        found.insert(0, rest)
    return found
