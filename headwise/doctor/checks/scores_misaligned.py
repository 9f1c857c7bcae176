"""A term of the scores that belongs to other tokens, as after a relative shift that is a row or a column off.

Transformer-XL computes the scores of positions for all distances and shifts each row to its place (Dai et al. 2019,
appendix B). What is added to the score of query i and key j must come from these two: a term of the projected keys
from key j, also where the shape [N, N] hides that it was gathered as [K, Q] (DeBERTa's position-to-content term). The
marks say which tokens each term comes from; terms of constants, and of several tokens, are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.way import MAPS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Step, pair_tokens
from headwise.doctor.reading.marks import Marks
from headwise.doctor.reading.site import Site

FINDINGS = ("scores-misaligned",)


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.way.layout in MAPS:
        raise NotApplicable("its tokens may be pairs, and a term that of the pair of two keys")
    compared = False
    for site in patient.see().sites:
        if site.grid is None:
            continue
        for step in site.steps_before:
            for term in step.terms:
                foreign = _foreign(site, step, term)
                if foreign is None:
                    continue
                compared = True
                if bool(foreign.any()):
                    yield _finding(site, step, term, foreign)
                    return
    if not compared:
        raise NotApplicable("no term that depends on a token is added to its scores")


def _foreign(site: Site, step: Step, term: Marks) -> Tensor | None:
    """Where the term comes from a token that is neither the query nor the key of a visible score; None if no cell
    can be judged.
    """
    shape = step.source.shape
    if site.product.number in term.seeds() or term.source.ndim > len(shape):
        return None
    cells = _tokens(site, site.product.number, step.source)
    known, foreign = (torch.zeros(shape, dtype=torch.bool) for _ in range(2))
    inputs = [marks.input_of(x) for x in cells]
    sides = tuple(zip(cells, "qk" if site.queries_left else "kq", strict=True))
    for number in term.seeds():
        of = _projection(site, number)
        for token in _tokens(site, number, term.source.expand(shape), term.token.expand(shape)):
            comparable = (token >= 0) & _visible(site, step.source) & (cells[0] >= 0) & (cells[1] >= 0)
            comparable &= torch.stack([marks.input_of(token) == x for x in inputs]).any(0)
            known |= comparable
            row, column = (x if of in (None, name) else torch.full_like(x, marks.UNKNOWN) for x, name in sides)
            foreign |= comparable & (token != row) & (token != column)
    return foreign if bool(known.any()) else None


def _tokens(site: Site, number: int, source: Tensor, token: Tensor | None = None) -> tuple[Tensor, ...]:
    """The tokens of each element; those of row and column, where a seed is a product of two that depend on inputs."""
    seed = site.trace.seed(number)
    if seed.left is not None and seed.right is not None and seed.left.live and seed.right.live:
        return pair_tokens(seed, source)
    assert token is not None
    return (token.masked_fill(marks.seed_of(source) != number, marks.UNKNOWN),)


def _projection(site: Site, number: int) -> str | None:
    """Whether a seed is a product of the projected queries ("q") or keys ("k") with constants; None if of neither, or
    if they share a projection.
    """
    seed = site.trace.seed(number)
    if seed.left is None or seed.right is None or seed.left.live == seed.right.live:
        return None
    live = seed.left if seed.left.live else seed.right
    origins = set(marks.seed_of(live.source).unique().tolist())
    owned = {name: {x.number for x in site.projections[name]} for name in "qk"}
    if owned["q"] & owned["k"] or -1 in origins:
        return None
    return next((name for name, numbers in owned.items() if origins <= numbers), None)


def _visible(site: Site, source: Tensor) -> Tensor:
    """Whether the score with this source has a weight: cells that a mask hides may hold anything."""
    number, softmax = site.product.number, site.softmax
    inside = marks.seed_of(softmax.source) == number
    weights = torch.zeros(site.product.value.numel())
    weights[marks.element_of(softmax.source[inside])] = softmax.weights[inside].float().nan_to_num(0.0)
    here = marks.seed_of(source) == number
    return here & (weights[marks.element_of(source).clamp(min=0).masked_fill(~here, 0)] > 0)


def _finding(site: Site, step: Step, term: Marks, foreign: Tensor) -> Finding:
    place = tuple(foreign.nonzero()[0].tolist())
    query, key = (int(marks.position_of(x)[place]) for x in _tokens(site, site.product.number, step.source))
    if not site.queries_left:
        query, key = key, query
    shape = step.source.shape
    found = [
        int(marks.position_of(x)[place])
        for number in term.seeds()
        for x in _tokens(site, number, term.source.expand(shape), term.token.expand(shape))
        if int(x[place]) >= 0
    ]
    return Finding(
        "scores-misaligned",
        "bug",
        f"what is added to the score of query {query} and key {key} comes from token {found[0]}; of {foreign.numel()} "
        f"scores {int(foreign.sum())} that are not masked get the term of another token",
        "check the shift: each row must keep its own query (pad one column, view with one row more, drop the first), "
        "and keys after the query need positions of their own, 2 N - 1 in all",
        step.where,
        numbers={"cells": float(foreign.sum())},
    )
