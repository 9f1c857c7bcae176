"""Heads merged so that positions mix, and an output projection that exists but is not used.

The output of attention is [B, H, N, E]. `reshape(B, N, H * E)` without a transpose first puts parts of several
positions into one row, and the output projection then treats that row as one position.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import Anatomy
from headwise.doctor.reading.marks import MIXED
from headwise.doctor.reading.projection_names import read_name
from headwise.doctor.reading.site import Site

FINDINGS = ("head-merge", "output-projection-missing")

_FIX = "merge with .transpose(1, 2).reshape(B, N, H * E), so that all heads of a position are adjacent"


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    for site in anatomy.sites:
        if site.grid is not None and site.contraction is not None:
            yield from _merged(anatomy, site)
    yield from _missing(patient, anatomy)


def _merged(anatomy: Anatomy, site: Site) -> Iterator[Finding]:
    met, found = site.contraction, site.output
    assert met is not None
    if bool((met.product.token == MIXED).any()):
        return
    out = anatomy.run.out
    if found is not None:
        seed, operand, dim = found
        tokens = marks.one(operand.token, dim)
        rows = float((tokens == MIXED).float().mean())
        if rows and len(anatomy.sites) == 1:
            several = operand.token.movedim(dim, -1).reshape(-1, operand.token.shape[dim])[tokens.reshape(-1) == MIXED][
                0
            ]
            positions = sorted(set(marks.position_of(several[several >= 0]).tolist()))
            if len(positions) > 1:  # else it is joined to what comes from no position: a vector of all of them
                yield _finding(
                    f"a row that the output projection treats as one position comes from positions {positions}",
                    seed.where,
                )
            return
    if out is None or len(anatomy.sites) > 1 or out.token.ndim != 3:
        return
    if out.token.shape[:2] != anatomy.inputs.query.shape[:2]:  # one number a token, for example
        return
    expected = marks.token(0, out.token.shape[:2])[..., None].expand(out.token.shape)
    known = out.token >= 0
    wrong = known & (out.token != expected) & (marks.input_of(out.token) == 0)
    if found is None:
        mixed = marks.seed_of(out.source) == met.product.number
        wrong &= mixed
    if bool(wrong.any()):
        b, n = torch.nonzero(wrong)[0, :2].tolist()
        there = sorted(set(marks.position_of(out.token[b, n][known[b, n]]).tolist()))
        yield _finding(f"the output at position {n} comes from the queries at positions {there}", met.product.where)


def _finding(evidence: str, where: object) -> Finding:
    return Finding("head-merge", "bug", f"the heads are merged across positions: {evidence}", _FIX, where)  # type: ignore[arg-type]


def _missing(patient: Patient, anatomy: Anatomy) -> Iterator[Finding]:
    """An output projection that no operation uses."""
    if any(site.output is not None for site in anatomy.sites) or not any(site.grid for site in anatomy.sites):
        return
    used = {name for seed in anatomy.run.seeds for name in seed.name.split(", ")}
    for name, parameter in patient.module.named_parameters():
        if parameter.ndim >= 2 and name not in used and read_name(name.removesuffix(".weight")).is_output:
            yield Finding(
                "output-projection-missing",
                "bug",
                f"the heads are returned as they are: {name} {list(parameter.shape)} exists, but nothing is multiplied "
                "with it",
                f"return {name.removesuffix('.weight')}(merged heads)",
                patient.where,
            )
