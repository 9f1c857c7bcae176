"""A view or reshape in the place of a transpose.

`x.view(B, C, N)` of a tensor [B, N, C] runs, and no axis of the result means anything: a reshape splits axes and merges
adjacent ones, it never exchanges two. So does a bias table that is gathered as [Q * K, H] and viewed as [H, Q, K]. The
relative shift (Dai et al. 2019, appendix B) is the use of it that is right: of padded scores, or there and back with a
row dropped in between.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from headwise.doctor.calling.way import MAP, MAPS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import Reshape, Step, Trace
from headwise.doctor.reading.site import Site

FINDINGS = ("reshape-scrambles",)

_FIX = "move the axes first, with transpose, permute or einsum, and reshape after that"


def check(patient: Patient) -> Iterator[Finding]:
    anatomy, found = patient.anatomy, None
    if patient.interface.way.layout in MAPS and patient.interface.length is None:
        found = _by_sizes(look(patient, length=MAP).run)
    found = found or _by_sizes(look(patient).run if anatomy is None else anatomy.run)
    for site in anatomy.sites if anatomy is not None and found is None else ():
        found = found or next((x for step in site.steps_before if (x := _by_heads(site, step)) is not None), None)
    if found is not None:
        yield found


def _by_sizes(run: Trace) -> Finding | None:
    """A reshape whose sizes show that it cuts across axes."""
    for i, found in enumerate(run.reshapes):
        others = [x for j, x in enumerate(run.reshapes) if j != i]
        if found.cuts and not found.padded and not any(_undoes(found, x) for x in others):
            at = next(n for n in reversed(found.shape) if n != 1)  # the second row of the last axis
            before, after = _index(at, found.shape), _index(at, found.into)
            return Finding(
                "reshape-scrambles",
                "bug",
                f"a view or reshape of {list(found.shape)} to {list(found.into)} exchanges no axes, it only reads the "
                f"same numbers in order: what was at {before} is at {after}",
                _FIX,
                found.where,
            )
    return None


def _undoes(found: Reshape, other: Reshape) -> bool:
    """Whether one of the two is the way there and the other the way back, after one row was dropped. Two rows
    are dropped where the queries are every second token (Funnel, Dai et al. 2020).
    """
    there, back = _changed(found), _changed(other)[::-1]
    return all(
        len(x) == len(y) and 0 < sum(abs(a - b) for a, b in zip(x, y, strict=True)) <= 2
        for x, y in zip(there, back, strict=True)
    )


def _changed(found: Reshape) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes before and after, without those in front and at the end that stay."""
    shape, into = (tuple(n for n in x if n != 1) for x in (found.shape, found.into))
    front = sum(1 for _ in itertools.takewhile(lambda x: x[0] == x[1], zip(shape, into, strict=False)))
    shape, into = shape[front:], into[front:]
    end = sum(1 for _ in itertools.takewhile(lambda x: x[0] == x[1], zip(shape[::-1], into[::-1], strict=False)))
    return shape[: len(shape) - end], into[: len(into) - end]


def _index(at: int, shape: Sequence[int]) -> list[int]:
    found = []
    for n in reversed(shape):
        at, rest = divmod(at, n)
        found.append(rest)
    return found[::-1]


def _by_heads(site: Site, step: Step) -> Finding | None:
    """A bias from a table [R, H], of which a head gets several columns."""
    heads = site.q.shape[1] if site.grid is not None else 1
    for term in step.terms if heads > 1 else ():
        numbers = term.seeds()
        table = site.trace.seed(numbers[0]) if len(numbers) == 1 and not term.live else None
        if table is None or table.value.ndim < 2 or table.value.shape[-1] != heads:
            continue
        column = (marks.element_of(term.source) % heads).where(term.source >= 0, torch.nan)
        given = site.cells(column.expand(step.source.shape), step.source)  # [B, H, Q, K]
        for head, columns in enumerate(given.unbind(1)):
            several = sorted(set(columns[columns.isfinite()].long().tolist()))
            if len(several) > 1:
                return Finding(
                    "reshape-scrambles",
                    "bug",
                    f"{table.name} has a column for each of {heads} heads, and what is added to the scores of head "
                    f"{head} comes from its columns {', '.join(map(str, several))}",
                    _FIX,
                    step.where,
                )
    return None
