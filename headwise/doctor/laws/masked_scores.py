"""A mask sets the scores that it hides, and no others, to -inf before the softmax.

The same inputs run without the mask and with one that differs between the examples; `mask_cells` names what became of
the scores. A mask is passed as its text plainly says, else as a trial showed. Where no form of it works, what reaches
the output may take another way: then the scores alone decide.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import MaskInput
from headwise.doctor.finding import Finding, Severity, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import each
from headwise.doctor.probing.probe import Probe
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.mask_cells import Act, compare, fixed_fill, future, lost
from headwise.doctor.reading.site import Site

FINDINGS = (
    *("mask-polarity", "mask-added", "mask-multiplied", "mask-after-softmax", "mask-broadcast", "mask-head-order"),
    *("mask-fill-too-small", "mask-overflows-half", "causal-leak", "masked-key-counts"),
)

_SAFE = -9e3  # a fill that ordinary scores do not reach


def check(patient: Patient) -> Iterator[Finding]:
    masks = [x for x in each(patient.interface.masks) if not x.own]
    if patient.anatomy is None:
        for mask in masks:
            yield from _otherwise_stated(patient, mask)
    yield from _own(patient)
    spoilt = list(_infinite(patient))
    yield from spoilt
    if not masks and spoilt:
        return
    if not masks:
        raise NotApplicable("it takes no mask")
    if "projection-zero" in patient.excused:
        raise NotChecked("a projection is 0, so that a mask has no effect to understand it by")
    tried, passed = False, []
    for mask in masks:
        found: list[tuple[_Measured, Act]] = []
        for form in _forms(mask, released=patient.is_library):
            seen = list(_measured(patient, form))
            found = found or seen
            if seen and all(act.kind == "right" for _, act in seen):
                found = seen
                passed += [] if mask.works else [mask.parameter]
                break
        tried = tried or bool(found)
        told = [x for measured, act in found for x in measured.tell(act)]
        yield from told
        if not told:
            yield from _otherwise_stated(patient, mask)
    if not tried:
        raise NotChecked("no scores with and without a mask could be compared")
    if passed:
        raise NotChecked(f"{passed[0]}: what it hides reaches the output by another way than attention")


def _forms(mask: MaskInput, *, released: bool) -> Iterator[MaskInput]:
    """The forms in which a mask is passed, the most likely first."""
    if mask.claimed is not None and _stated(mask):
        yield dataclasses.replace(mask, form=mask.claimed)  # its text is taken at its word
        return
    unsaid = mask.claimed != "additive" and (mask.form, mask.shape) == ("additive", "BK")
    unsaid = unsaid and not released  # others pass 0 and 1 in this shape; its own model adds what is right
    if not unsaid:
        yield mask
    if unsaid or not mask.works:  # its dtype is a guess, and its form may be one
        for form in ("allowed", "forbidden"):
            yield dataclasses.replace(mask, form=form, dtype=torch.bool, works=False)


def _stated(mask: MaskInput) -> bool:
    """Whether its text, and not a name alone, plainly says another form than a trial showed."""
    if mask.claimed in ("additive", mask.form) or mask.claim.startswith("the name "):
        return False
    return mask.form != "additive" or "bool" in mask.claim or not ("inf" in mask.claim or "add" in mask.claim)


@dataclasses.dataclass(frozen=True)
class _Measured:
    """An attention without a mask and with it."""

    patient: Patient
    mask: MaskInput
    hidden: Tensor  # [B, 1, Q, K]
    site: Site
    twin: Site

    @property
    def name(self) -> str:
        return f"`{self.mask.parameter}`"

    def act(self) -> Act:
        """What the mask did to the scores."""
        rows = self.hidden[..., 0, :, None] if self._by_rows() else None
        return compare(self.site.scores, self.twin.scores, self.hidden, rows)

    def _by_rows(self) -> bool:
        """Whether rows of padding are there, which nobody reads: they may attend to what they like."""
        return self.mask.what == "keys" and self.hidden.shape[-1] == self.hidden.shape[-2]

    def changed(self) -> tuple[str, Where | None]:
        """The operation that acted on the scores with the mask alone, and its line."""
        before = {(x.name, x.where) for x in self.site.steps_before}
        new = [x for x in self.twin.steps_before if (x.name, x.where) not in before] or self.twin.steps_before
        where = self.twin.where_masked(new)
        return next((x.name for x in reversed(new) if x.where == where), ""), where

    def tell(self, act: Act) -> Iterator[Finding]:
        """The finding of what the mask did."""
        step, where = self.changed()
        if act.kind == "filled" and act.value == 0 and step in ("mul", "div"):
            act = Act("multiplied")
        if act.kind == "right":
            yield from self._filled(act, where)
        elif act.kind in ("nothing", "unclear"):
            yield from self._weights()
        elif act.kind == "opened":
            yield from self._opened(act, where)
        elif act.kind in ("all", "inverted"):
            yield from self._inverted(act, where)
        elif act.kind in ("filled", "lowered"):
            typo = " (1e-9 for -1e9?)" if 0 < abs(act.value) < 1e-3 else ""
            yield Finding(
                "mask-fill-too-small",
                "bug",
                f"{self.name} sets masked scores to {act.value:g}{typo}, which is an ordinary score: they keep a weight"
                if act.kind == "filled"
                else f"{self.name} lowers masked scores by only {-act.step:g}: ordinary scores outweigh that",
                "fill with -inf, or torch.finfo(dtype).min",
                where,
                numbers={"fill": act.value + act.step},
            )
        else:
            yield self._misled(act, where)

    def _misled(self, act: Act, where: Where | None) -> Finding:
        b, h, other = act.place
        which = "forbidden" if act.cells else "allowed"
        severity: Severity = "risk" if act.kind == "added" and self.mask.form == "additive" else "bug"
        before = "set forbidden scores to -inf before the softmax"
        name, evidence, fix = {
            "added": (
                "mask-added",
                f"{self.name} is added to the scores as it is: {which} cells change by {act.step:+g}, and no cell is "
                "masked",
                "use masked_fill(mask, -inf), or add 0 and -inf",
            ),
            "multiplied": (
                "mask-multiplied",
                f"the scores are multiplied by {self.name}: masked scores become 0, which is an ordinary score, and "
                "keep a weight",
                before,
            ),
            "other example": (
                "mask-head-order",
                f"{self.name} of example {other} acts on head {h} of example {b}: batch and heads are merged in "
                "different orders in the mask and in the scores",
                "repeat the mask with repeat_interleave(H, dim=0) if scores are [B * H, Q, K] with the heads of an "
                "example adjacent",
            ),
            "queries": (
                "mask-broadcast",
                f"{self.name} masks queries instead of keys: the masked positions are still attended to",
                "reshape a padding mask [B, K] to [B, 1, 1, K]",
            ),
            "transposed": (
                "mask-broadcast",
                f"{self.name} masks the transposed cells: queries and keys are swapped",
                "give the mask the shape [.., Q, K]",
            ),
            "elsewhere": (
                "mask-broadcast",
                f"{self.name} masks other cells than it should: {act.cells} of {act.of} are wrong",
                "give the mask a shape that broadcasts to [B, H, Q, K]",
            ),
        }[act.kind]
        return Finding(name, severity, evidence, fix, where, numbers={"added": act.step} if act.kind == "added" else {})

    def _opened(self, act: Act, where: Where | None) -> Iterator[Finding]:
        if self.patient.interface.causal_claim:
            yield Finding(
                "causal-leak",
                "bug" if self.mask.what == "keys" else "risk",
                f"with {self.name} passed, {act.cells} of the {act.of} cells that the module masks by itself are no "
                "longer masked",
                "combine the masks with AND: a key must be allowed by both",
                where,
            )

    def _inverted(self, act: Act, where: Where | None) -> Iterator[Finding]:
        if self.mask.works or self.mask.claimed is not None:  # else nobody says what its values mean
            every = "with a mask that forbids nothing, every key is masked"
            evidence = every if act.kind == "all" else "it masks exactly the cells that it should allow"
            claim = f" ({_quoted(self.mask)})" if self.mask.claim else ""
            yield _polarity(self.mask, f"{self.name}{claim}: {evidence}", where)

    def _filled(self, act: Act, where: Where | None) -> Iterator[Finding]:
        """Fills of a mask that hides the right cells, and are not low enough or too low."""
        open_ = self.site.scores.isfinite() & (self.site.scores > FORBIDDEN)
        free = self.hidden[..., 0, :, None] if self._by_rows() else torch.zeros_like(self.hidden[..., :1])
        filled = self.twin.scores[self.hidden & open_ & ~free]
        fill = fixed_fill(filled) if filled.numel() else None
        if fill is not None and fill < torch.finfo(torch.float16).min:
            yield Finding(
                "mask-overflows-half",
                "risk" if self.patient.in_half else "note",
                f"{self.name} fills with {fill:g}, which float16 (down to -65504) cannot hold",
                "fill with -inf, or torch.finfo(scores.dtype).min",
                where,
                numbers={"fill": fill},
            )
        if max(min(act.value, 0.0), min(act.step, 0.0)) > _SAFE and act.value > _SAFE:
            yield Finding(
                "mask-fill-too-small",
                "risk",
                f"{self.name} sets forbidden cells to only {act.value:.6g}; lower scores, or large scores nearby, "
                "outweigh it",
                "fill with -inf, or torch.finfo(dtype).min",
                where,
                numbers={"fill": act.value},
            )

    def _weights(self) -> Iterator[Finding]:
        """The scores stay as they are: the weights, and what they are multiplied with."""
        if self.site.contraction is None or self.twin.contraction is None:
            return
        before, after = self.site.weights_at_values, self.twin.weights_at_values
        hidden = self.hidden.expand(self.site.scores.shape)
        sums = lost(before, after, hidden) if before.shape == hidden.shape else None
        values, cleared = self.site.v, self.twin.v
        if sums is not None:
            yield Finding(
                "mask-after-softmax",
                "bug",
                f"{self.name} is applied to the weights, after the softmax: rows with masked keys sum to as little as "
                f"{sums:.3g}, and the weight of the masked keys is lost",
                "set forbidden scores to -inf before the softmax",
                _after_softmax(self.twin),
                numbers={"sum": sums},
            )
        elif self.mask.form != "additive" and after.shape == hidden.shape and values.shape[2] == hidden.shape[-1]:
            keys = self.hidden.all(-2).expand(values.shape[:3])
            rows = hidden & ~self.hidden[..., 0, :, None] if self._by_rows() else hidden
            weights = after[rows & (self.site.scores > FORBIDDEN)].nan_to_num().abs()
            silent = self.mask.works or (not bool(cleared[keys].any()) and bool(values[keys].any()))
            if silent and weights.numel() and float(weights.amin()) > 1e-4:
                yield Finding(
                    "masked-key-counts",
                    "bug",
                    f"{self.name} clears the numbers of masked keys, and their scores stay as ordinary ones: each "
                    f"masked key keeps a weight of {float(weights.amin()):.2g} or more, which the others lose",
                    "set forbidden scores to -inf before the softmax",
                    self.twin.softmax.where,
                    numbers={"weight": float(weights.amin())},
                )


def _measured(patient: Patient, mask: MaskInput) -> Iterator[tuple[_Measured, Act]]:
    """What this mask did to each attention whose scores are [B, H, Q, K]."""
    anatomy = patient.see()
    (batch, queries), keys = anatomy.inputs.query.shape[:2], anatomy.inputs.key_length
    allowed = _allowed(mask, batch, queries, keys)
    try:
        laid = allowed if mask.what == "cells" else allowed[:, 0]
        value = mask.value(laid, patient.interface.way.heads, anatomy.inputs.query.dtype)
        masked = anatomy.masked({mask.parameter: value})
    except Exception:  # it takes no mask of this form
        return
    for site, twin in zip(anatomy.sites, masked or (), strict=masked is not None):
        if site.grid is None or twin.grid is None or site.scores.shape[2:] != (queries, keys):
            continue
        if queries > 1 and torch.equal(site.q, site.q[:, :, :1].expand_as(site.q)):
            continue  # one learned query, as in additive attention: rows of its scores cannot be told apart
        if site.scores.shape == twin.scores.shape:
            measured = _Measured(patient, mask, ~allowed[:, None], site, twin)
            yield measured, measured.act()


def _allowed(mask: MaskInput, batch: int, queries: int, keys: int) -> Tensor:
    """[B, Q, K]: an unambiguous mask. For keys it differs between examples; for cells no row equals a column."""
    if mask.what == "keys":
        real = torch.arange(keys) < keys - torch.arange(batch)[:, None]
        real = real if mask.by_example else real[-1:]
        return real[:, None].expand(batch, queries, keys)
    draw = torch.Generator().manual_seed(7)
    allowed = torch.rand((batch if mask.by_example else 1, queries, keys), generator=draw) < 0.6
    allowed[..., 0] = True
    allowed |= torch.eye(queries, keys, dtype=torch.bool)
    allowed[:, 0, -1] = False
    return allowed.expand(batch, queries, keys)


def _own(patient: Patient) -> Iterator[Finding]:
    """Its own causal mask, of which an ordinary score is left: a small fill, or a soft cap after the mask."""
    for site in patient.see().sites:
        fill = None if site.grid is None else future(site.scores)
        if fill is not None:
            yield Finding(
                "mask-fill-too-small",
                "bug",
                f"its own mask leaves all later keys the score {fill:g}, which is an ordinary one: they keep a weight",
                "fill with -inf after everything else that changes scores, such as a soft cap",
                site.where_masked(site.steps_before),
                numbers={"fill": fill},
            )
            return


def _infinite(patient: Patient) -> Iterator[Finding]:
    """A mask whose -inf is written into the weights: no call with it gives numbers, so no trial tells what it means."""
    known = {mask.parameter for mask in patient.interface.masks}
    roles = patient.interface.roles.items()
    inputs, probe = Probe(patient).inputs(), Probe(patient)
    sizes = {"B": len(inputs.query), "Q": inputs.query.shape[1], "K": inputs.key_length, "1": 1}
    for name in (name for name, role in roles if role in ("mask", "padding") and name not in known):
        for shape in ("BK", "B11K", "QK", "B1QK", "BQK"):
            hiding = torch.ones([sizes[x] for x in shape], dtype=torch.bool)
            hiding[..., 1] = False
            for value in (hiding, hiding.long(), hiding.float(), ~hiding, (~hiding).long(), (~hiding).float()):
                out = probe.attempt(inputs, given={name: value})
                if not isinstance(out, Tensor) or bool(out.isfinite().any()):
                    continue
                site = _spoilt(look(patient, given={name: value}).sites)
                if site is not None:
                    yield Finding(
                        "mask-after-softmax",
                        "bug",
                        f"where {name} hides one key of {sizes['K']}, the softmax is finite, and the weights that are "
                        "multiplied with the values are not: the mask is written into the weights",
                        "fill the scores with -inf before the softmax, not the weights after it",
                        _after_softmax(site),
                    )
                    return


def _after_softmax(site: Site) -> Where | None:
    """The line that masks the weights."""
    return site.where_masked([x for x in site.trace.steps if x.order > site.softmax.order])


def _spoilt(sites: Iterable[Site]) -> Site | None:
    """The first attention whose weights are finite, and are not where they meet the values."""
    readable = (x for x in sites if x.grid is not None and x.contraction is not None)
    finite = (x for x in readable if bool(x.weights.isfinite().all()))
    return next((x for x in finite if bool(x.weights_at_values.isinf().any())), None)


def _otherwise_stated(patient: Patient, mask: MaskInput) -> Iterator[Finding]:
    """Text that plainly says another polarity than a trial showed."""
    if mask.works and mask.claimed not in (None, mask.form, "additive") and mask.form != "additive":
        says, does = ("may attend" if x == "allowed" else "forbidden" for x in (mask.claimed, mask.form))
        yield _polarity(
            mask,
            f"{_quoted(mask)} says that True in `{mask.parameter}` = {says}; in the module True = {does}",
            patient.where,
        )


def _polarity(mask: MaskInput, evidence: str, where: Where | None) -> Finding:
    """A bug; but of names torch's own alone is plain: in others 1 is padding, or a real token."""
    named = mask.claim.startswith("the name ") and "key_padding_mask" not in mask.parameter
    fix = f"invert the mask where it is applied (~{mask.parameter}), or correct the documentation"
    return Finding("mask-polarity", "risk" if named else "bug", evidence, fix, where)


def _quoted(mask: MaskInput) -> str:
    return mask.claim if mask.claim.startswith("the name ") else repr(mask.claim)
