"""The law: the scores of a module that makes a mask itself hide what its contract hides, and no more.

Which keys a query may see is read from the softmax's input, without a mask argument, and compared with a causal mask.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import claims
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading import compare_masks
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site

FINDINGS = ("causal-leak", "causal-unasked", "mask-polarity", "causal-corner", "mask-fill-too-small")

_WEAK = -9e3  # a fill above it is outweighed by large scores


def check(patient: Patient) -> Iterator[Finding]:
    made = False
    for site in patient.see().sites:
        if site.grid is None:
            continue
        if bool((site.scores <= FORBIDDEN).all()) and _all_lowered(site):
            made = True
            yield _lowered(site)
            continue
        seen = allowed_of(site)
        if seen is None or bool(seen.all()) or not bool(seen.any()):
            continue
        made = True
        if _in_pieces(site):
            yield from _piece(site, seen)
        elif seen.shape[0] != seen.shape[1]:
            yield from _rectangular(patient, site, seen)
        else:
            yield from _square(patient, site, seen)
    if not made:
        raise NotApplicable("it makes no mask itself")


def allowed_of(site: Site) -> Tensor | None:
    """[Q, K]: the pairs that are allowed without a mask argument; None where heads or examples differ."""
    scores = site.scores
    allowed = ~(scores <= FORBIDDEN) & ~torch.isnan(scores)
    first = allowed[0, 0]
    return first if bool((allowed == first).all()) else None


def where_masked(site: Site) -> Where | None:
    """The line that masks its scores."""
    return site.where_masked(site.steps_before)


def _square(patient: Patient, site: Site, seen: Tensor) -> Iterator[Finding]:
    found = compare_masks.from_causal(seen)
    said, where = patient.contract.visible, where_masked(site)
    stated = said is not None and said.value is not None
    if found.kind == "outside":
        yield Finding(
            "mask-polarity",
            "bug",
            "every position attends only to those outside of a window around it: the window's mask is inverted",
            "mask where the distance is larger than the window, and allow the rest",
            where,
        )
    elif found.kind == "reversed":
        yield Finding(
            "mask-polarity",
            "bug",
            "the module's own causal mask is reversed: every position attends to later positions and to no earlier one",
            "mask where tril is 0 (or where triu(diagonal=1) is 1)",
            where,
        )
    elif found.kind == "ahead":
        yield Finding(
            "causal-leak",
            "bug" if stated or found.by == 1 else "risk",  # streaming models look some keys ahead
            f"the causal mask lets every position attend to {found.by} later "
            f"position{'s' if found.by > 1 else ''}: its diagonal is {found.by}, expected 0",
            "tril(diagonal=0), or triu(diagonal=1) for the masked cells",
            where,
            numbers={"diagonal": float(found.by)},
        )
    elif found.kind == "behind" and not site.weight_of_constants():  # else the first query has a key of its own
        first = None if site.contraction is None else site.weights_at_values[:, :, 0]
        if first is not None and (bool(first.isnan().any()) or bool((first[..., 1:] > 1e-6).any())):
            then = "NaN" if bool(first.isnan().any()) else "a mean over all positions, the future included"
            yield Finding(
                "causal-leak",
                "bug",
                "the causal mask also hides every position from itself, so the first position has no allowed key: its "
                f"output is {then}",
                "tril(diagonal=0), or triu(diagonal=1) for the masked cells, keeps the position itself",
                where,
                numbers={"diagonal": -1.0},
            )
    elif found.kind == "gap":
        yield _gap(site, found)
    elif found.kind == "" and compare_masks.corner(seen):
        yield from _causal(patient, site, seen)


def _causal(patient: Patient, site: Site, seen: Tensor) -> Iterator[Finding]:
    """Of scores that are masked causally, whether that was asked for, and whether the fill is low enough."""
    said = patient.contract.visible
    if said is not None and said.value is None:
        yield Finding(
            "causal-unasked",
            "bug",
            f"{said.words}, but without a mask argument no position attends to a later one",
            "leave the causal mask out (is_causal=False)",
            where_masked(site),
        )
    fill = float(site.scores[0, 0][~seen].max())
    if fill > _WEAK:
        yield Finding(
            "mask-fill-too-small",
            "risk",
            f"the causal mask sets later keys to only {fill:.6g}; lower scores, or large scores nearby, outweigh it",
            "fill with -inf, or torch.finfo(dtype).min",
            where_masked(site),
            numbers={"fill": fill},
        )


def _rectangular(patient: Patient, site: Site, seen: Tensor) -> Iterator[Finding]:
    gap = compare_masks.hidden_ahead(seen)
    if gap is not None:
        yield _gap(site, gap)
        return
    queries, keys = seen.shape
    if compare_masks.corner(seen) == "first" and queries < keys:
        if claims.causal_option(patient.module, patient.interface.flags) is not None:
            return  # an option asks for it, and its corner is a convention: torch's own is the first key
        yield Finding(
            "causal-corner",
            "bug",
            f"with {queries} queries and {keys} keys, query 0 attends to key 0 alone: the causal mask is aligned with "
            f"the upper left corner, as if the queries were the first positions; the last query should attend to all "
            f"{keys} keys",
            f"align the mask with the end: query i attends to keys up to i + K - Q, tril(diagonal={keys - queries}) "
            "here",
            where_masked(site),
        )


def _gap(site: Site, found: compare_masks.Difference) -> Finding:
    return Finding(
        "causal-leak",
        "bug",
        f"from query {found.row} on, queries attend to all keys up to a position, not to the next {found.by}, and "
        "again to those after them",
        "a window hides old keys as well: masked | tril(ones, diagonal=-window), not tril(masked, diagonal=window)",
        where_masked(site),
        numbers={"hidden": float(found.by)},
    )


# A mask that lowers every score


def _all_lowered(site: Site) -> bool:
    """Whether every row still has finite scores, all of them as low as masked ones, of ordinary products."""
    highest = site.scores.amax(-1)
    return bool(highest.isfinite().all()) and bool(site.products.nan_to_num().abs().max() < -FORBIDDEN / 10)


def _lowered(site: Site) -> Finding:
    lowest = float(site.scores.amax(-1).max())
    return Finding(
        "mask-polarity",
        "bug",
        f"every score is lowered to {lowest:.3g} or less, those of allowed keys too: the mask that the module makes is "
        "0 where a key is allowed, and is used as one that is 1 there",
        "make the mask in the form that is expected where it is applied: 1 and 0, or 0 and -inf",
        where_masked(site),
        numbers={"highest": lowest},
    )


# Attention in chunks


def _in_pieces(site: Site) -> bool:
    """Whether the queries are a part of the sequence and the keys all of it."""
    assert site.grid is not None
    element = site.grid.element
    present = (element >= 0).flatten(0, 1).any(0).any(-1)
    own = bool((site.grid.key_inputs == 0).all())
    return not bool(present.all()) or (own and element.shape[-2] != element.shape[-1])


def _piece(site: Site, seen: Tensor) -> Iterator[Finding]:
    """Queries of one chunk, each at its own position; the mask may wrongly treat the first of them as position 0."""
    assert site.grid is not None
    rows = torch.nonzero((site.grid.element >= 0).flatten(0, 1).any(0).any(-1))[:, 0]
    first = int(rows[0])
    if first and bool((seen[rows] == torch.ones_like(seen[rows]).tril()).all()):
        yield Finding(
            "causal-corner",
            "bug",
            f"the query at position {first} attends to key 0 alone: the causal mask of this chunk is aligned with the "
            "upper left corner, as if its queries were the first positions",
            f"align the mask with the start of the chunk, tril(diagonal={first}) here",
            where_masked(site),
            numbers={"first": float(first)},
        )
