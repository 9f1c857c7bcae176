"""What a query attended to, in all its heads, goes to the row of its own token.

The product of weights and values carries the token of its query. It is compared with the rows of the output
projection, with the tokens of a residual to which it is added, and with the rows of the module's output.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import Patient
from headwise.doctor.reading import marks
from headwise.doctor.reading.anatomy import Anatomy
from headwise.doctor.reading.marks import MIXED
from headwise.doctor.reading.site import Site
from headwise.language import Sentence

FINDINGS = ("head-merge", "output-misplaced")


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    if len(anatomy.sites) == 1:
        yield from _merged(anatomy, anatomy.sites[0])
    yield from _at_a_residual(anatomy)


def _merged(anatomy: Anatomy, site: Site) -> Iterator[Finding]:
    """Heads that are put into rows of other tokens, before the output projection or without one."""
    met, found, out = site.contraction, site.output, anatomy.run.out
    if site.grid is None or met is None or bool((met.product.token == MIXED).any()):
        return
    if found is not None:
        seed, operand, dim = found
        positions = positions_in_a_row(operand.token.movedim(dim, -1).flatten(0, -2))
        if positions:
            yield _merges(
                Sentence(
                    "a row that the output projection treats as one position comes from positions {positions}"
                ).format(positions=positions),
                seed.where,
            )
            return
    if out is None or out.token.ndim != 3 or out.token.shape[:2] != anatomy.inputs.query.shape[:2]:
        return  # one number a token, for example
    expected = marks.token(0, out.token.shape[:2])[..., None].expand(out.token.shape)
    here = (out.token >= 0) & (marks.input_of(out.token) == 0)
    if found is None:
        here &= marks.seed_of(out.source) == met.product.number
    wrong = here & (out.token != expected)
    if bool(wrong.any()):
        b, n = wrong.nonzero()[0, :2].tolist()
        there = marks.position_of(out.token[b, n][here[b, n]]).unique().tolist()
        yield _merges(
            Sentence("the output at position {n} comes from the queries at positions {there}").format(n=n, there=there),
            met.product.where,
        )


def positions_in_a_row(rows: Tensor) -> list[int]:
    """The positions of the first of some rows of tokens [R, D] that has several; [] if none has. A row whose numbers
    come from no token, or each from many, says nothing.
    """
    for row in rows[marks.one(rows, -1) == MIXED]:
        positions: list[int] = marks.position_of(row[row >= 0]).unique().tolist()
        return positions if len(positions) > 1 else []
    return []


def _merges(evidence: str, where: Where | None) -> Finding:
    return Finding(
        "head-merge",
        "bug",
        Sentence("the heads are merged across positions: {evidence}").format(evidence=evidence),
        "merge with .transpose(1, 2).reshape(B, N, H * E), so that all heads of a position are adjacent",
        where,
    )


# --- Residuals --------------------------------------------------------------------------------------------------------


def _at_a_residual(anatomy: Anatomy) -> Iterator[Finding]:
    """A sum of tokens and of what other queries attended to; or of what two attentions side by side attended to."""
    made = {site: _made(site) for site in anatomy.sites if site.contraction is not None}
    attended = set[int]().union(*made.values())
    for site, step in itertools.product(made, anatomy.run.steps):
        own = [term for term in step.terms if made[site] & set(term.seeds())]
        others = [term for term in step.terms if not made[site] & set(term.seeds())]
        if len(own) != 1 or len(others) != 1:
            continue
        query, token = (term.token.expand(step.source.shape).flatten() for term in (own[0], others[0]))
        known = (query >= 0) & (token >= 0) & (marks.example_of(query) == marks.example_of(token))
        known &= marks.input_of(query) == marks.input_of(token)
        query, token = marks.position_of(query[known]), marks.position_of(token[known])
        of_others = set(others[0].seeds())
        if displaced(query, token, side_by_side=bool(attended & of_others) and not _read(site) & of_others):
            differ = query != token
            first = int(differ.nonzero()[0])
            yield Finding(
                "output-misplaced",
                "bug",
                Sentence(
                    "the outputs of {tokens} tokens belong to other queries: what query {query} attended to is added "
                    "to token {token}"
                ).format(tokens=len(token[differ].unique()), query=int(query[first]), token=int(token[first])),
                "undo what was done to the order of the tokens: a shift by -s with a shift by +s, a permutation with "
                "its inverse",
                step.where,
            )
            return


def displaced(query: Tensor, token: Tensor, *, side_by_side: bool = False) -> bool:
    """Whether many queries stand at other positions. Outputs may be shifted by one to hide the present; two attentions
    side by side, as of the past and of the future, by any number.
    """
    apart = query - token
    shifted = bool((apart == apart[:1]).all())
    return 4 * int((apart != 0).sum()) >= max(1, len(apart)) and not (
        shifted and (side_by_side or abs(int(apart[0])) == 1)
    )


def _made(site: Site) -> set[int]:
    """The numbers of the products that hold what it attended to."""
    assert site.contraction is not None
    return {site.contraction.product.number} | ({site.output[0].number} if site.output is not None else set())


def _read(site: Site) -> set[int]:
    """The numbers of what its queries are projected from."""
    operands = [x for seed in site.projections["q"] for x in (seed.left, seed.right) if x is not None and x.live]
    return {int(number) for x in operands for number in marks.seed_of(x.source).unique()}
