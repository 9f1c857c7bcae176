"""The law: the scores of a module that makes a mask itself hide what its contract hides, and no more.

Which keys a query may see is read from the softmax's input, without a mask argument, and compared with a causal mask.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import claims
from headwise.doctor.finding import Finding, Where
from headwise.doctor.laws.masked_scores import too_small
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading import compare_masks
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.mask_cells import SAFE, future
from headwise.doctor.reading.site import Site
from headwise.language import Sentence

FINDINGS = ("causal-leak", "causal-unasked", "mask-polarity", "causal-corner", "mask-fill-too-small")

_DIAGONAL = "tril(diagonal=0), or triu(diagonal=1) for the masked cells, which keeps the position itself"


def check(patient: Patient) -> Iterator[Finding]:
    made = False
    for site in patient.see().sites:
        if site.grid is None:
            continue
        fill, seen, lowered = future(site.scores), allowed_of(site), list(_lowered(site))
        made |= fill is not None or bool(lowered)
        if fill is not None:
            yield too_small("its own causal mask", fill, site.where_masked(), ordinary=True)
        elif lowered:
            yield from lowered
        elif seen is not None and bool(seen.any()) and not bool(seen.all()):
            made = True
            yield from (_square if seen.shape[0] == seen.shape[1] else _rectangular)(patient, site, seen)
    if not made:
        raise NotApplicable("it makes no mask itself")


def allowed_of(site: Site) -> Tensor | None:
    """[Q, K]: the pairs that are allowed without a mask argument; None where heads or examples differ. The queries are
    those that have scores, such as a chunk.
    """
    assert site.grid is not None
    scores = site.scores[:, :, _there(site)]
    allowed = ~(scores <= FORBIDDEN) & ~torch.isnan(scores)
    first = allowed[0, 0]
    return first if bool((allowed == first).all()) else None


def _there(site: Site) -> Tensor:
    """The positions of the queries that have scores."""
    assert site.grid is not None
    return (site.grid.element >= 0).flatten(0, 1).any(0).any(-1).nonzero()[:, 0]


def reversed_mask(where: Where | None) -> Finding:
    """The finding of a causal mask that hides the past."""
    return Finding(
        "mask-polarity",
        "bug",
        "the module's own causal mask is reversed: every position attends to later positions and to no earlier one",
        "mask where key > query: masked_fill(torch.triu(ones, 1), -inf), or masked_fill(tril == 0, -inf)",
        where,
    )


def _square(patient: Patient, site: Site, seen: Tensor) -> Iterator[Finding]:
    found, said, where = compare_masks.from_causal(seen), patient.contract.causal, site.where_masked()
    if found.kind == "outside":
        yield Finding(
            "mask-polarity",
            "bug",
            "every position attends only to those outside of a window around it: the window's mask is inverted",
            "mask where the distance is larger than the window, and allow the rest",
            where,
        )
    elif found.kind == "reversed":
        yield reversed_mask(where)
    elif found.kind == "ahead":
        stated = said is not None and said.so
        yield Finding(
            "causal-leak",
            "bug" if stated or found.by == 1 else "risk",  # streaming models look some keys ahead
            Sentence(
                "the causal mask lets every position attend to later ones: its diagonal is {diagonal}, expected 0"
            ).format(diagonal=found.by),
            _DIAGONAL,
            where,
        )
    elif found.kind == "behind" and not site.weight_of_constants():  # else the first query has a key of its own
        first = None if site.contraction is None else site.weights_at_values[:, :, 0]
        if first is not None and (bool(first.isnan().any()) or bool((first[..., 1:] > 1e-6).any())):
            yield Finding(
                "causal-leak",
                "bug",
                "the causal mask also hides every position from itself, so the first position has no allowed key: its "
                "output is NaN, or a mean over all positions, the future included",
                _DIAGONAL,
                where,
            )
    elif found.kind == "gap":
        yield _gap(found, where)
    elif found.kind == "" and compare_masks.corner(seen):
        if said is not None and not said.so:
            yield Finding(
                "causal-unasked",
                "bug",
                Sentence("{words}, but without a mask argument no position attends to a later one").format(
                    words=said.words
                ),
                "leave the causal mask out (is_causal=False)",
                where,
            )
        fill = float(site.scores[0, 0][~seen].max())
        if fill > SAFE:
            yield too_small("its own causal mask", fill, where, ordinary=False)


def _rectangular(patient: Patient, site: Site, seen: Tensor) -> Iterator[Finding]:
    """Queries of a memory, or a chunk of the sequence: the first of them may wrongly be taken for position 0."""
    assert site.grid is not None
    gap, where, (queries, keys) = compare_masks.hidden_ahead(seen), site.where_masked(), seen.shape
    if gap is not None:
        yield _gap(gap, where)
        return
    first, own = int(_there(site)[0]), bool((site.grid.key_inputs == 0).all())
    # The corner is a convention where an option asks for the mask: torch's own is the first key.
    right = first == 0 and (own or claims.causal_option(patient.module, patient.interface.flags) is not None)
    if compare_masks.corner(seen) == "first" and queries < keys and not right:
        yield Finding(
            "causal-corner",
            "bug" if first else "risk",  # who calls it with more keys than queries is not known
            Sentence(
                "with {queries} queries and {keys} keys, the first query attends to key 0 alone: the causal mask is "
                "aligned with the upper left corner, as if the queries were the first positions"
            ).format(queries=queries, keys=keys),
            Sentence(
                "align the mask with the positions of the queries, tril(diagonal={first}) here: query i of a memory, "
                "or after cached keys, attends to keys up to i + K - Q"
            ).format(first=first or keys - queries),
            where,
        )


def _gap(found: compare_masks.Difference, where: Where | None) -> Finding:
    return Finding(
        "causal-leak",
        "bug",
        Sentence(
            "from query {row} on, queries attend to all keys up to a position, not to the next {hidden}, and again to "
            "those after them"
        ).format(row=found.row, hidden=found.by),
        "a window hides old keys as well: masked | tril(ones, diagonal=-window), not tril(masked, diagonal=window)",
        where,
    )


def _lowered(site: Site) -> Iterator[Finding]:
    """Every row still has finite scores, all of them as low as masked ones, of ordinary products."""
    assert site.grid is not None
    highest = site.scores.amax(-1)
    low = bool((highest <= FORBIDDEN).all()) and bool(highest.isfinite().all())
    if low and bool(site.products.nan_to_num().abs().max() < -FORBIDDEN / 10):
        yield Finding(
            "mask-polarity",
            "bug",
            Sentence(
                "every score is lowered to {highest:.3g} or less, those of allowed keys too: the mask that the module "
                "makes is 0 where a key is allowed, and is used as one that is 1 there"
            ).format(highest=float(highest.max())),
            "make the mask in the form that is expected where it is applied: 1 and 0, or 0 and -inf",
            site.where_masked(),
        )
