"""Outputs that stand at other positions than their queries: a shift, a sort or a cut into windows that is not undone.

A residual connection adds to every token what its own query attended to: the marks say of which query each output is.
Without one, where a query attends to a part of the keys, its output depends on these. An output that does not depend on
what the query of its position attends to, and depends on what that query cannot see, belongs to another query.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.events import Step
from headwise.doctor.reading.site import Site

FINDINGS = ("output-misplaced",)

_LENGTH = 16
_CLEAR = 1e-3  # of a weight, or of the output's size


def check(patient: Patient) -> Iterator[Finding]:
    found = _at_a_residual(patient.see())
    if found is not None:
        (query, token), count, step = found
        yield _finding(
            f"the outputs of {count} tokens belong to other queries: what query {query} attended to is added to token "
            f"{token}",
            count,
            step.where,
        )
        return
    if patient.interface.takes != "self" or len(patient.see().sites) != 1:
        raise NotApplicable("it is no single attention of a sequence to itself")
    length = patient.interface.length or _LENGTH
    try:
        sites, others = (look(patient, seed=seed, batch=1, length=length).sites for seed in (0, 1))
        probe = Probe(patient)
        influence = probe.influence(probe.interface.inputs(1, length, length))
    except Exception as error:
        raise NotChecked(f"it does not run with {length} tokens: {type(error).__name__}") from None
    if not len(sites) == len(others) == 1 or influence.shape != (length, length):
        return
    weights = sites[0].attended(length)
    if bool((weights > 0).all()):
        raise NotApplicable("every query attends to every key")
    if bool(((weights > 0) != (others[0].attended(length) > 0)).any()):
        raise NotApplicable("which keys a query attends to depends on what they hold")
    off_diagonal = ~torch.eye(length, dtype=torch.bool)  # a residual connection adds the token itself
    lost = ((weights > _CLEAR) & (influence <= REACHED) & off_diagonal).any(1)
    foreign = ((weights == 0) & (influence > _CLEAR) & off_diagonal).any(1)
    wrong = lost & foreign
    if bool(((weights > 0) == (influence > REACHED).T)[off_diagonal.T].all()):
        return  # queries and keys are taken for one another
    if 4 * int(wrong.sum()) >= length:
        row = int(wrong.nonzero()[0])
        seen = [int(k) for k in (weights[row] > _CLEAR).nonzero()[:, 0]]
        depends = [int(k) for k in (influence[row] > _CLEAR).nonzero()[:, 0]]
        yield _finding(
            f"the outputs of {int(wrong.sum())} of {length} positions belong to other queries: query {row} attends to "
            f"{seen}, and output {row} depends on {depends}",
            int(wrong.sum()),
            sites[0].softmax.where,
        )


def _at_a_residual(anatomy: Anatomy) -> tuple[tuple[int, int], int, Step] | None:
    """A sum of tokens and of what other queries attended to: one pair of query and token, how many, and the step."""
    made = {site: _made(site) for site in anatomy.sites if site.contraction is not None}
    attended = set[int]().union(*made.values())
    for side_by_side, site, step in itertools.product((False, True), made, anatomy.run.steps):
        own = [term for term in step.terms if made[site] & set(term.seeds())]
        others = [term for term in step.terms if not made[site] & set(term.seeds())]
        if len(own) != 1 or len(others) != 1:
            continue
        of_others = set(others[0].seeds())
        if side_by_side != (bool(attended & of_others) and not _read(site) & of_others):
            continue
        query, token = (term.token.expand(step.source.shape).flatten() for term in (own[0], others[0]))
        known = (query >= 0) & (token >= 0) & (marks.example_of(query) == marks.example_of(token))
        known &= marks.input_of(query) == marks.input_of(token)
        at = marks.position_of(query[known]), marks.position_of(token[known])
        if side_by_side and bool((at[0] - at[1] == (at[0] - at[1])[:1]).all()):
            continue  # attentions of the past and of the future, side by side, may hide the present by a shift
        differ = at[0] != at[1]
        if bool(differ.any()) and 4 * int(differ.sum()) >= known.numel() and not _one_step(*at):
            first = int(differ.nonzero()[0])
            return (int(at[0][first]), int(at[1][first])), len(at[1][differ].unique()), step
    return None


def _made(site: Site) -> set[int]:
    """The numbers of the products that hold what it attended to."""
    assert site.contraction is not None
    return {site.contraction.product.number} | ({site.output[0].number} if site.output is not None else set())


def _read(site: Site) -> set[int]:
    """The numbers of what its queries are projected from."""
    operands = [x for seed in site.projections["q"] for x in (seed.left, seed.right) if x is not None and x.live]
    return {int(number) for x in operands for number in marks.seed_of(x.source).unique()}


def _one_step(query: Tensor, token: Tensor) -> bool:
    """Whether every token gets what the query beside it attended to: outputs may be shifted to hide the present."""
    apart = query - token
    return bool((apart == apart[:1]).all()) and abs(int(apart[0])) == 1


def _finding(evidence: str, positions: int, where: Where | None) -> Finding:
    return Finding(
        "output-misplaced",
        "bug",
        evidence,
        "undo what was done to the order of the tokens: a shift by -s with a shift by +s, a permutation with its "
        "inverse",
        where,
        numbers={"positions": float(positions)},
    )
