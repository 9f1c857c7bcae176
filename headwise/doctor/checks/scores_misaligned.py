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

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Step, pair_tokens
from headwise.doctor.reading.marks import Marks
from headwise.doctor.reading.site import Site

FINDINGS = ("scores-misaligned",)


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.way.layout == "BHWM":
        raise NotApplicable("its tokens may be pairs, and a term that of the pair of two keys")
    compared = False
    for site in patient.see().sites:
        for step in site.steps_before if site.grid is not None else ():
            for term in step.terms:
                foreign = _foreign(site, step, term)
                compared |= foreign is not None
                if foreign is not None and bool((foreign >= 0).any()):
                    yield _finding(site, step, foreign)
                    return
    if not compared:
        raise NotApplicable("no term that depends on a token is added to its scores")


def _foreign(site: Site, step: Step, term: Marks) -> Tensor | None:
    """For each score, the token that the term comes from, if it is neither its query nor its key and no mask hides the
    score; else -1. None if no score can be judged.
    """
    shape = step.source.shape
    if site.product.number in term.seeds() or term.source.ndim > len(shape):
        return None
    cells = _tokens(site, site.product.number, step.source)
    visible = _visible(site, step.source) & (cells[0] >= 0) & (cells[1] >= 0)
    sides = tuple(zip(cells, "qk" if site.queries_left else "kq", strict=True))
    found, judged = torch.full(shape, marks.UNKNOWN), False
    for number in term.seeds():
        of = _projection(site, number)
        for token in _tokens(site, number, term.source.expand(shape), term.token.expand(shape)):
            inputs = [marks.input_of(x) for x in (token, *cells)]
            comparable = visible & (token >= 0) & ((inputs[0] == inputs[1]) | (inputs[0] == inputs[2]))
            judged |= bool(comparable.any())
            own = torch.stack([token == x for x, name in sides if of in (None, name)]).any(0)
            found = torch.where(comparable & ~own, token, found)
    return found if judged else None


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


def _finding(site: Site, step: Step, foreign: Tensor) -> Finding:
    cells = _tokens(site, site.product.number, step.source)
    place = (foreign >= 0).nonzero()[0].unbind()
    query, key, other = (
        int(marks.position_of(x[place])) for x in (*(cells if site.queries_left else cells[::-1]), foreign)
    )
    return Finding(
        "scores-misaligned",
        "bug",
        f"what is added to the score of query {query} and key {key} comes from token {other}: "
        f"{int((foreign >= 0).sum())} scores get a term of a token that is neither their query nor their key",
        "check the shift: each row must keep its own query (pad one column, view with one row more, drop the first), "
        "and keys after the query need positions of their own, 2 N - 1 in all",
        step.where,
        numbers={"scores": float((foreign >= 0).sum())},
    )
