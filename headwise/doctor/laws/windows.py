"""The law: a window that a module states cuts what every query sees, by as many keys on every path and side.

The windows are read from the scores of a call that is longer than the window, or from which tokens reach which outputs.
Whether a window of w counts the query itself is a convention; what contradicts both readings is a bug. In a map, tokens
that are further apart than a window do not meet, however the map is shifted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.way import MAPS
from headwise.doctor.contract import WINDOW, Window, attributes
from headwise.doctor.finding import Finding, Severity, Where
from headwise.doctor.laws.visibility import allowed_of
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe
from headwise.doctor.reading import compare_masks
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.site import Site
from headwise.language import Sentence

FINDINGS = ("window-off-by-one", "window-ignored", "window-wraps", "shift-mask")

_LARGEST, _ROUND = 64, 16


def check(patient: Patient) -> Iterator[Finding]:
    side = _side_of_rows(patient)
    if patient.interface.way.layout in MAPS or side:
        yield from _shifted(patient, side)
        return
    yield from _round(patient)
    window = patient.contract.window
    if window is None or patient.interface.takes != "self" or patient.interface.length:
        raise NotApplicable("it states no window, or its keys are given apart from its queries, or its length is fixed")
    if window.size > _LARGEST:
        raise NotChecked(Sentence("its window of {size} is too long to look at every pair").format(size=window.size))
    length = 2 * window.size + 3
    try:
        sites = look(patient, batch=1, length=length).sites
    except Exception as error:
        raise NotChecked(
            Sentence("it does not take {length} positions: {error}").format(length=length, error=error)
        ) from error
    if len(sites) > 1 and not window.own and _has_layers(patient):
        raise NotApplicable("its layers may have different windows")
    seen = [(site, None if site.grid is None else allowed_of(site)) for site in sites]
    square = [(site, x) for site, x in seen if x is not None and x.shape == (length, length)]
    for site, x in square:
        yield from _judged(patient, window, x, site.where_masked())
    if square and len(square) == len(sites) and all(torch.equal(x, torch.ones_like(x).tril()) for _, x in square):
        yield from _not_applied(patient, window, square[0][0])
    elif not square and not (len(sites) > 1 and _has_layers(patient)):
        probe = Probe(patient)
        reached = probe.influence(probe.square(1, length)) > REACHED
        uneven = compare_masks.uneven_rows(reached)
        if uneven is None:
            yield from _judged(patient, window, reached, None)
        else:
            row, full = uneven
            evidence = Sentence(
                "with {name} = {window} position {row} attends to {count} positions, and those around it to {full}: a "
                "window must be full before its oldest key is dropped"
            ).format(name=window.name, window=window.size, row=row, count=int(reached[row].sum()), full=full)
            yield _off(evidence, "bug", None)


def _has_layers(patient: Patient) -> bool:
    """Whether it has several parts of one class that is not torch's, as a stack of layers has."""
    kinds = [type(x) for x in patient.module.modules() if not type(x).__module__.startswith("torch.")]
    return len(kinds) > len(set(kinds))


def _judged(patient: Patient, window: Window, seen: Tensor, where: Where | None) -> Iterator[Finding]:
    """A band of a window, compared with all readings of its size."""
    ends = compare_masks.band(seen)
    if ends is None or ends[0] == -math.inf or ends[1] < 0 or ends[0] > 0:
        return
    left, right = -int(ends[0]), ends[1]
    if fits(window, left, right):
        return
    other = {left, right} <= {0, window.size - 1, window.size}
    severity = patient.severity("window-off-by-one: the other reading", "bug") if other else "bug"
    sees = (
        Sentence("{left} earlier and {right} later positions").format(left=left, right=right)
        if right
        else Sentence("itself and {left} earlier positions").format(left=left)
    )
    evidence = Sentence("with {name} = {window} a position sees {sees}")
    yield _off(evidence.format(name=window.name, window=window.size, sees=sees), severity, where)


def _off(evidence: str, severity: Severity, where: Where | None) -> Finding:
    return Finding(
        "window-off-by-one",
        severity,
        evidence,
        "compare with < if the window counts the position itself, with <= if it does not",
        where,
    )


def fits(window: Window, left: int, right: float) -> bool:
    """Whether a band of so many keys on each side is right by some reading of a window of this size."""
    size = window.size
    if right and left != right:
        return left + right + 1 == size  # an even number of keys has no middle
    if right:
        return left in (size, size - 1, size // 2, (size - 1) // 2)
    if window.name == "left":  # as a spec states it
        return left == size
    counts_itself = "sliding" in window.name or window.name.endswith("size")
    return left == size - 1 or (left == size and not counts_itself)


def _not_applied(patient: Patient, window: Window, site: Site) -> Iterator[Finding]:
    """A module that masks the future by itself, and with it should mask what is outside of its window."""
    if "window" not in window.name and "sliding" not in window.name:
        return
    if window.switch is False or not patient.reports("window-ignored: in every layer"):
        return
    held = list(attributes(patient.module))
    if any(hasattr(owner, "_attn_implementation") for _, _, owner in held):
        return  # the model around it makes the mask
    by_layer = any("layer_type" in name or "layer_id" in name or "window_layers" in name for name, _, _ in held)
    yield Finding(
        "window-ignored",
        "bug" if window.switch and not by_layer else "risk",
        Sentence(
            "with {name} = {window} a position attends to {earlier} earlier positions: to all that there are"
        ).format(name=window.name, window=window.size, earlier=2 * window.size + 2),
        "apply the window on every path, with the causal mask: key > query - window",
        site.where_masked(),
    )


def _round(patient: Patient) -> Iterator[Finding]:
    """Neighbours that torch.roll brings come from the other end of the sequence at its borders."""
    face = patient.interface
    if face.takes != "self" or (face.length or 0) > 4 * _LARGEST:
        return
    length = face.length or _ROUND
    try:
        sites = look(patient, batch=1, length=length).sites
    except Exception:  # it does not run with so many tokens
        return
    for site in sites[:1]:
        seen = site.attended(length) > REACHED
        both = compare_masks.goes_round(seen) if bool(seen.diagonal().all()) else None
        if both is not None:
            row = int(both.nonzero()[0])
            yield Finding(
                "window-wraps",
                "bug",
                Sentence(
                    "its window goes round: of {length} tokens, query {row} attends to {keys}, from both ends of the "
                    "sequence, and so do {queries} queries"
                ).format(length=length, row=row, keys=int(seen[row].sum()), queries=int(both.sum())),
                "mask the keys that torch.roll brings from the other end, or pad in its place and mask the padding",
                site.softmax.where,
            )


# Maps


def _side_of_rows(patient: Patient) -> int:
    """The side of a square map whose tokens are given in one row, [B, H * W, M]; 0 if any number of tokens works."""
    face = patient.interface
    side = math.isqrt(face.length or 0)
    return side if face.way.layout == "BNM" and side**2 == face.length else 0


def _shifted(patient: Patient, row: int) -> Iterator[Finding]:
    """Tokens that a cyclic shift brings together from opposite borders. A map is also tried with a side that is no
    multiple of the window: its padding must lie where the mask expects it.
    """
    numbers = {name: _number(x) for name, x, _ in attributes(patient.module)}
    window = next((x for name, x in numbers.items() if x and (WINDOW.search(name) or name in ("ws", "win_size"))), 0)
    shift = next((x for name, x in numbers.items() if x and name.startswith("shift")), 0)
    if not 0 < shift < window <= 8:
        raise NotApplicable("its windows are not shifted")
    maps = {side: _meet(patient, side) for side in ((row,) if row else (2 * window, 2 * window - 1))}
    known = {side: reached for side, reached in maps.items() if reached is not None}
    if not known:
        raise NotChecked("it does not take a map of two windows")
    for side, reached in known.items():
        at = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = (at[:, None] - at).abs().amax(-1)
        if bool(reached[apart == window].any()):
            raise NotApplicable("tokens that are further apart than a window reach one another in any case")
        pairs = int((reached & (apart > window)).sum())
        if pairs:
            yield Finding(
                "shift-mask",
                patient.severity("shift-mask: between borders", "bug" if "mask" in patient.source else "risk"),
                Sentence(
                    "in a map of {side} x {side} with windows of {window} that are shifted by {shift}, {pairs} pairs "
                    "of tokens at opposite borders attend to one another: they are {apart} or more places apart"
                ).format(side=side, window=window, shift=shift, pairs=pairs, apart=window + 1),
                "mask the pairs of different regions: number the regions of the padded and shifted map, cut the "
                "numbers into windows as the tokens are cut, and compare them",
            )
            return


def _number(x: object) -> int:
    """A number, or the same number twice; else 0."""
    values = x if isinstance(x, (tuple, list)) else (x,)
    return values[0] if values and all(type(y) is int and y == values[0] for y in values) else 0


def _meet(patient: Patient, side: int) -> Tensor | None:
    """[Q, K]: which tokens of a map of this side see which; None if it does not take one.

    By the weights, where they can be read: a norm over the whole map also lets every token reach every other.
    """
    try:
        sites = look(patient, batch=1, length=side * side).sites
        if len(sites) == 1 and sites[0].grid is not None:
            return sites[0].attended(side * side) > REACHED
        probe = Probe(patient)
        return probe.influence(probe.interface.inputs(1, side * side, side * side)) > REACHED
    except Exception:
        return None
