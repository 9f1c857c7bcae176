"""What a mask does to the scores, cell by cell: which cells it forbids, how, and whether they are the right ones.

The same inputs run with and without a mask; the difference of the scores is the mask as the module understands it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import MaskInput
from headwise.doctor.checks.mask_claims import (
    added,
    ambiguous,
    one_each,
    otherwise_stated,
    quoted,
    said_to_hold_0_and_1,
)
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.edges import starts_at_rows
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site
from headwise.errors import DoctorError

FINDINGS = (
    *("mask-polarity", "mask-added", "mask-multiplied", "mask-after-softmax", "mask-broadcast", "mask-head-order"),
    *("mask-fill-too-small", "mask-overflows-half", "causal-leak", "masked-key-counts"),
)

_SAFE = -9e3


def check(patient: Patient) -> Iterator[Finding]:
    patient.see()
    masks = [m for m in patient.interface.masks if not m.own and not _of_edges(patient, m)]
    if not masks:
        raise NotApplicable("it takes no mask")
    if "projection-zero" in patient.excused:
        raise NotChecked("a projection is 0, so that a mask has no effect to understand it by")
    tried = 0
    for mask in one_each(masks):
        # Documentation is taken literally: the mask is passed in the form that it states, and the effect is measured.
        claimed = None if mask.claim.startswith("the name ") else mask.claimed
        doubted = claimed not in (None, mask.form, "additive") and (
            mask.form != "additive" or said_to_hold_0_and_1(mask)
        )
        found = _measured(patient, dataclasses.replace(mask, form=claimed) if claimed and doubted else mask)
        tried += found is not None
        if found or (doubted and found is not None):
            yield from found
        elif doubted and mask.form == "additive":
            yield from added(patient, mask)
        elif found is not None and _may_hold_0_and_1(patient, mask):
            yield from _as_0_and_1(patient, mask)
        else:
            yield from otherwise_stated(patient, mask)
    if not tried:
        raise NotChecked("no scores with and without a mask could be compared")


def _of_edges(patient: Patient, mask: MaskInput) -> bool:
    """Whether the mask is said to be [K, Q], edges from rows to columns: reading/edges.py."""
    said = starts_at_rows(patient, mask.parameter) if mask.what == "cells" else None
    return said is not None and said[1]


def _measured(patient: Patient, mask: MaskInput) -> list[Finding] | None:
    """What this mask did to the scores; None if that cannot be measured."""
    anatomy = patient.see()
    (batch, queries), keys = anatomy.inputs.query.shape[:2], anatomy.inputs.key_length
    allowed = _allowed(mask, batch, queries, keys)
    try:
        value = mask.value(
            allowed if mask.what == "cells" else allowed[:, 0], patient.interface.way.heads, anatomy.inputs.query.dtype
        )
        masked = anatomy.masked({mask.parameter: value})
    except DoctorError:
        return None
    found = None
    seen = []
    for site, twin in zip(anatomy.sites, masked or (), strict=masked is not None):
        if site.grid is None or twin.grid is None or site.scores.shape[2:] != (queries, keys):
            continue
        if queries > 1 and torch.equal(site.q, site.q[:, :, :1].expand_as(site.q)):
            continue  # one learned query, as in additive attention: rows of its scores cannot be told apart
        if site.scores.shape == twin.scores.shape:
            found = [*(found or []), *_compare(patient, mask, allowed, site, twin)]
            seen.append(twin)
    if found == [] and mask.form != "additive" and (mask.works or _cleared(anatomy.sites, seen, allowed)):
        found += _keeps_weight(patient, mask, allowed, seen)
    return found


def _cleared(sites: tuple[Site, ...], seen: list[Site], allowed: Tensor) -> bool:
    """Whether the mask sets the values of masked keys to 0, and nothing else."""
    for site, twin in zip(sites, seen, strict=False):
        if site.contraction is None or twin.contraction is None or twin.v.shape[2] != allowed.shape[2]:
            return False
        masked = ~allowed[:, None, -1].expand(twin.v.shape[:3])
        if bool(twin.v[masked].any()) or not bool(site.v[masked].any()):
            return False
    return bool(seen) and bool((allowed == allowed[:, :1]).all())


def _keeps_weight(patient: Patient, mask: MaskInput, allowed: Tensor, sites: list[Site]) -> Iterator[Finding]:
    """Masked keys whose numbers no longer matter, and that still take their share of the softmax."""
    least = 1.0
    for site in sites:
        if site.contraction is None or site.scores.shape[2:] != allowed.shape[1:]:
            return
        cells = ~allowed[:, None].expand(site.scores.shape) & (site.scores > FORBIDDEN)
        if mask.what == "keys" and patient.interface.takes == "self":
            cells = cells & allowed[:, None, 0, :, None]  # rows of padding are not used
        weights = site.weights_at_values
        if weights.shape != cells.shape or not bool(cells.any()):
            return
        least = min(least, float(weights[cells].nan_to_num().abs().amin()))
    if least > 1e-4:
        yield Finding(
            "masked-key-counts",
            "bug",
            f"`{mask.parameter}` clears the numbers of masked keys, and their scores stay as ordinary ones: each "
            f"masked key keeps a weight of {least:.2g} or more, which the others lose",
            "set forbidden scores to -inf before the softmax",
            sites[0].softmax.where,
            numbers={"weight": least},
        )


def _allowed(mask: MaskInput, batch: int, queries: int, keys: int) -> Tensor:
    """[B, Q, K]: an unambiguous mask. For keys it differs between examples; for cells no row equals a column."""
    if mask.what == "keys":
        real = torch.ones(batch, keys, dtype=torch.bool)
        for b in range(batch):
            real[b, keys - b :] = False
        if not mask.by_example:
            real[:] = real[-1]
        return real[:, None].expand(batch, queries, keys)
    generator = torch.Generator().manual_seed(7)
    shape = (batch if mask.by_example else 1, queries, keys)
    allowed = torch.rand(shape, generator=generator) < 0.6
    allowed[..., 0] = True
    allowed |= torch.eye(queries, keys, dtype=torch.bool)
    allowed[:, 0, -1] = False
    return allowed.expand(batch, queries, keys)


def _may_hold_0_and_1(patient: Patient, mask: MaskInput) -> bool:
    """Whether nothing says that a mask [B, K] or [B, Q, K] is to be added: others pass 0 and 1 in these shapes."""
    if mask.form != "additive" or not mask.works or mask.claimed == "additive":
        return False
    if not patient.reports("mask-added: passed as 0 and 1"):
        return False
    stated = patient.spec.padding if patient.interface.roles.get(mask.parameter) == "padding" else patient.spec.mask
    shapes = {m.shape for m in patient.interface.masks if m.parameter == mask.parameter and m.works}
    return stated is None and bool(shapes & {"BK", "BQK"}) and not shapes & {"QK", "11QK", "B1QK", "BHQK", "B11K"}


def _as_0_and_1(patient: Patient, mask: MaskInput) -> Iterator[Finding]:
    """A mask of which nothing is said, passed as 0 and 1: whether the softmax is merely shifted."""
    for form in ("allowed", "forbidden"):
        for finding in _measured(patient, dataclasses.replace(mask, form=form, dtype=torch.float32)) or ():
            if finding.name == "mask-added":
                shape = "[B, K]" if mask.what == "keys" else "[B, Q, K]"
                said = f"; nothing says that this mask {shape} is to hold 0 and -inf"
                yield dataclasses.replace(
                    finding,
                    severity="bug" if mask.what == "keys" else "risk",
                    evidence=f"passed as 0 and 1, {finding.evidence}{said}",
                    fix="use masked_fill(mask == 0, -inf), or say in the docstring that it is additive",
                )
                return


def _compare(patient: Patient, mask: MaskInput, allowed: Tensor, site: Site, twin: Site) -> Iterator[Finding]:
    before, after = site.scores, twin.scores
    open_ = torch.isfinite(before) & (before > FORBIDDEN)  # not masked by the module itself
    expected = ~allowed[:, None].expand(before.shape)
    if mask.what == "keys" and patient.interface.takes == "self":
        # Rows of padding are not used: some code lets them attend to themselves, so that they are not empty.
        padding = expected[:, :, 0, :, None].expand(before.shape)
    else:
        padding = torch.zeros_like(open_)
    change = torch.where(open_, after - before, 0.0).nan_to_num(nan=0.0, posinf=0.0, neginf=-torch.inf)
    where = _where(site, twin)
    name = f"`{mask.parameter}`"
    if not bool(open_.any()):
        yield from _inverted(mask, where, "with a mask that forbids nothing, every key is masked")
        return
    opened = ~open_ & torch.isfinite(after) & (after > FORBIDDEN) & ~padding
    if bool(opened.any()):
        claim = patient.interface.causal_claim
        if not claim:
            return  # it is causal only if no mask is passed
        yield Finding(
            "causal-leak",
            "bug" if mask.what == "keys" else "risk",
            f"with {name} passed, {int(opened.sum())} of the {int((~open_).sum())} cells that the module masks by "
            "itself are no longer masked",
            "combine the masks with AND: a key must be allowed by both",
            where,
        )
        return
    touched = change.abs() > 1e-4 * float(before[open_].abs().max())
    if not bool(touched.any()):
        yield from _afterwards(mask, expected & open_, site, twin)
        return
    forbidden = open_ & ((after <= FORBIDDEN) | (change <= FORBIDDEN))
    if not bool(forbidden.any()):
        yield from _weakly(mask, expected & open_, open_, before, after, change, touched, where)
        return
    wrong = (forbidden != expected) & open_
    if not bool((wrong & ~padding).any()):
        hidden = expected & open_ & ~wrong
        lowest, added = float(after[hidden].max()), float(change[hidden].max())
        yield from _overflowing(patient, name, after[hidden], where)
        if max(min(lowest, 0.0), min(added, 0.0)) > _SAFE and lowest > _SAFE:
            yield Finding(
                "mask-fill-too-small",
                "risk",
                f"{name} sets forbidden cells to only {lowest:.6g}; lower scores, or large scores nearby, outweigh it",
                "fill with -inf, or torch.finfo(dtype).min",
                where,
                numbers={"fill": lowest},
            )
        return
    yield from _overflowing(patient, name, after[forbidden], where)
    yield from _elsewhere(mask, forbidden, expected, open_, where)


def _overflowing(patient: Patient, name: str, filled: Tensor, where: Where | None) -> Iterator[Finding]:
    """A fill value written as a number in the code that overflows float16."""
    fill = float(filled[0])
    fixed = bool((filled == fill).all()) and math.isfinite(fill) and abs(fill) < 1e38  # otherwise from torch.finfo
    if fixed and fill < torch.finfo(torch.float16).min:
        yield Finding(
            "mask-overflows-half",
            "risk" if patient.in_half else "note",
            f"{name} fills with {fill:g}, which float16 (down to -65504) cannot hold",
            "fill with -inf, or torch.finfo(scores.dtype).min",
            where,
            numbers={"fill": fill},
        )


def _afterwards(mask: MaskInput, expected: Tensor, site: Site, twin: Site) -> Iterator[Finding]:
    """The scores are unchanged: check the weights."""
    if site.contraction is None or twin.contraction is None:
        return
    before, after = site.weights_at_values, twin.weights_at_values
    if before.shape != expected.shape or torch.allclose(before, after, atol=1e-6, equal_nan=True):
        return
    sums = after.nan_to_num().sum(-1)
    rows = expected.any(-1) & ~expected.all(-1)
    if not bool(rows.any()) or bool(((sums[rows] - 1).abs() < 1e-3).all()):
        return  # masked weights were set to 0 and the rest renormalised: the same as a mask before the softmax
    left = float(sums[rows].min())
    yield Finding(
        "mask-after-softmax",
        "bug",
        f"`{mask.parameter}` is applied to the weights, after the softmax: rows with masked keys sum to as little as "
        f"{left:.3f}, and the weight of the masked keys is lost",
        "set forbidden scores to -inf before the softmax",
        twin.softmax.where,
        numbers={"sum": left},
    )


def _weakly(
    mask: MaskInput,
    expected: Tensor,
    open_: Tensor,
    before: Tensor,
    after: Tensor,
    change: Tensor,
    touched: Tensor,
    where: Where | None,
) -> Iterator[Finding]:
    """The scores change, but no cell is forbidden."""
    name, allowed = f"`{mask.parameter}`", open_ & ~expected
    for cells, others, which in ((expected, allowed, "forbidden"), (allowed, expected, "allowed")):
        if not bool(cells.any()) or bool(touched[others].any()):
            continue
        values, steps = after[cells], change[cells]
        if bool((values - values.mean()).abs().max() < 1e-6 * (1 + values.abs().max())):
            fill = float(values.mean())
            if which == "allowed":
                return
            if fill == 0 and _multiplied(where):
                yield _multiplication(name, where)
                return
            typo = " (1e-9 for -1e9?)" if 0 < abs(fill) < 1e-3 else ""
            yield Finding(
                "mask-fill-too-small",
                "bug",
                f"{name} sets masked scores to {fill:g}{typo}, which is an ordinary score: they keep a weight",
                "fill with -inf, or torch.finfo(dtype).min",
                where,
                numbers={"fill": fill},
            )
            return
        if bool((steps - steps.mean()).abs().max() < 1e-4 * (1 + steps.abs().max())):
            step = float(steps.mean())
            if abs(step) <= 1.5:
                yield Finding(
                    "mask-added",
                    "bug" if mask.form != "additive" else "risk",
                    f"{name} is added to the scores as it is: {which} cells change by {step:+g}, and no cell is masked",
                    "use masked_fill(mask, -inf), or add 0 and -inf",
                    where,
                    numbers={"added": step},
                )
            elif step < 0 and which == "forbidden":
                yield Finding(
                    "mask-fill-too-small",
                    "bug",
                    f"{name} lowers masked scores by only {-step:g}: ordinary scores outweigh that",
                    "add -inf, or torch.finfo(dtype).min",
                    where,
                    numbers={"fill": step},
                )
            return
    ratio = after / before
    if bool((after[expected].abs() < 1e-9).all()) or bool((ratio[touched] - ratio[touched].mean()).abs().max() < 1e-4):
        yield _multiplication(name, where)


def _multiplied(where: Where | None) -> bool:
    return where is None or (("*" in where.code or "mul" in where.code) and "fill" not in where.code)


def _multiplication(name: str, where: Where | None) -> Finding:
    return Finding(
        "mask-multiplied",
        "bug",
        f"the scores are multiplied by {name}: masked scores become 0, which is an ordinary score, and keep a weight",
        "set forbidden scores to -inf before the softmax",
        where,
    )


def _elsewhere(
    mask: MaskInput, forbidden: Tensor, expected: Tensor, open_: Tensor, where: Where | None
) -> Iterator[Finding]:
    """Cells are masked, but not the right ones."""
    name = f"`{mask.parameter}`"
    if bool((forbidden == (~expected & open_)).all()):
        yield from _inverted(mask, where, "it masks exactly the cells that it should allow")
        return
    batch, heads = expected.shape[:2]
    rows = [
        [
            next((x for x in range(batch) if _same(forbidden[b, h], expected[x, 0], open_[b, h])), -1)
            for h in range(heads)
        ]
        for b in range(batch)
    ]
    if all(x >= 0 for row in rows for x in row) and mask.by_example:
        b, h = next((b, h) for b in range(batch) for h in range(heads) if rows[b][h] != b)
        yield Finding(
            "mask-head-order",
            "bug",
            f"{name} of example {rows[b][h]} acts on head {h} of example {b}: batch and heads are merged in "
            "different orders in the mask and in the scores",
            "repeat the mask with repeat_interleave(H, dim=0) if scores are [B * H, Q, K] with the heads of an "
            "example adjacent",
            where,
        )
        return
    wrong = (forbidden != expected) & open_
    if mask.what == "keys" and expected.shape[-1] == expected.shape[-2]:
        padding = expected.diagonal(dim1=-2, dim2=-1)  # queries that are padding may attend to what they like
        if not bool((wrong & ~padding[..., None]).any()):
            return
    turned = expected.transpose(-1, -2) if expected.shape[-1] == expected.shape[-2] else None
    by_query = bool((forbidden == forbidden[..., :1])[open_].all())
    if by_query:
        what = "masks queries instead of keys: the masked positions are still attended to"
        fix = "reshape a padding mask [B, K] to [B, 1, 1, K]"
    elif turned is not None and _same(forbidden, turned, open_):
        what = "masks the transposed cells: queries and keys are swapped"
        fix = "give the mask the shape [.., Q, K]"
    else:
        cells = int(wrong.sum())
        what = f"masks other cells than it should: {cells} of {int(open_.sum())} are wrong"
        fix = "give the mask a shape that broadcasts to [B, H, Q, K]"
    yield Finding("mask-broadcast", "bug", f"{name} {what}", fix, where)


def _inverted(mask: MaskInput, where: Where | None, evidence: str) -> Iterator[Finding]:
    if not mask.works and mask.claimed is None:  # nobody says what its values mean
        return
    claim = f" ({quoted(mask.claim)})" if mask.claim else ""
    yield Finding(
        "mask-polarity",
        "risk" if ambiguous(mask) else "bug",
        f"`{mask.parameter}`{claim}: {evidence}",
        f"invert the mask where it is applied (~{mask.parameter})",
        where,
    )


def _same(a: Tensor, b: Tensor, where: Tensor) -> bool:
    return bool((a == b)[where].all())


def _where(site: Site, twin: Site) -> Where | None:
    """The line that acted on the scores with the mask but not without it."""
    before = {(x.name, x.where) for x in site.steps_before}
    new = [x for x in twin.steps_before if (x.name, x.where) not in before] or twin.steps_before
    return twin.where_masked(new)
