"""A mask sets the scores that it hides, and no others, to -inf before the softmax.

The same inputs run without the mask and with one that differs between the examples; `mask_cells` names what became of
the scores. A mask is passed as its text plainly says, else as a trial showed. Where no form of it works, what reaches
the output may take another way: then the scores alone decide.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import MaskInput
from headwise.doctor.finding import Finding, Severity, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import each, every_form
from headwise.doctor.probing.probe import Probe
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.mask_cells import ORDINARY, SAFE, Act, compare, lost
from headwise.doctor.reading.site import Site
from headwise.language import Sentence, join

FINDINGS = (
    *("mask-polarity", "mask-added", "mask-multiplied", "mask-after-softmax", "mask-broadcast", "mask-head-order"),
    *("mask-fill-too-small", "causal-leak"),
)

_FILL = "fill with -inf, or torch.finfo(dtype).min, after everything else that changes scores, such as a soft cap"
_BEFORE = "set forbidden scores to -inf before the softmax"


def check(patient: Patient) -> Iterator[Finding]:
    masks = [x for x in each(patient.interface.masks) if not x.own]
    if patient.anatomy is None:
        for mask in masks:
            yield from _otherwise_stated(patient, mask)
    readable = [x for x in patient.see().sites if x.grid is not None and x.contraction is not None]
    yield from _infinite(patient)
    if not masks:
        raise NotApplicable("it takes no mask")
    if any(not bool(x.any()) for site in readable for x in (site.q, site.k, site.v)):
        raise NotChecked("a projection is 0, so that a mask has no effect to understand it by")
    tried, passed = False, []
    for mask in masks:
        found: list[_Measured] = []
        for form in _forms(mask, released=patient.is_library):
            seen = list(_measured(patient, form))
            found = found or seen
            if seen and all(x.act.kind == "right" for x in seen):
                found = seen
                passed += [] if mask.works else [mask.parameter]
                break
        tried = tried or bool(found)
        told = [x for measured in found for x in measured.tell()]
        yield from told
        if not told:
            yield from _otherwise_stated(patient, mask)
    if not tried:
        raise NotChecked("no scores with and without a mask could be compared")
    if passed:
        raise NotChecked(
            Sentence("{passed}: what it hides reaches the output by another way than attention").format(
                passed=passed[0]
            )
        )


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

    @functools.cached_property
    def act(self) -> Act:
        """What the mask did to the scores. Rows of padding, which nobody reads, may attend to what they like."""
        padding = self.mask.what == "keys" and self.hidden.shape[-1] == self.hidden.shape[-2]
        return compare(
            self.site.scores, self.twin.scores, self.hidden, self.hidden[..., 0, :, None] if padding else None
        )

    @functools.cached_property
    def where(self) -> Where | None:
        """The line that acted on the scores with the mask alone."""
        before = {(x.name, x.where) for x in self.site.steps_before}
        new = [x for x in self.twin.steps_before if (x.name, x.where) not in before]
        return self.twin.where_masked(new or self.twin.steps_before)

    def tell(self) -> Iterator[Finding]:
        """The finding of what the mask did."""
        act, mask, name, where = self.act, self.mask, self.name, self.where
        kind = act.kind
        if kind in ("nothing", "unclear"):
            yield from self._weights()
        elif kind == "right" and max(min(act.value, 0.0), min(act.step, 0.0)) > SAFE and act.value > SAFE:
            yield too_small(name, act.value, where, ordinary=False)
        elif kind == "opened" and self.patient.interface.causal_claim:
            yield Finding(
                "causal-leak",
                "bug" if mask.what == "keys" else "risk",
                Sentence(
                    "with {name} passed, {cells} of the {of} cells that the module masks by itself are no longer masked"
                ).format(name=name, cells=act.cells, of=act.of),
                "combine the masks with AND: a key must be allowed by both",
                where,
            )
        elif kind in ("all", "inverted") and (mask.works or mask.claimed is not None):  # else its meaning is not known
            every = "with a mask that forbids nothing, every key is masked"
            evidence = every if kind == "all" else "it masks exactly the cells that it should allow"
            yield _polarity(mask, join((f"{name}{f' ({_quoted(mask)})' if mask.claim else ''}", evidence), ": "), where)
        elif kind not in ("right", "opened", "all", "inverted"):
            yield misled(act, name, where, additive=mask.form == "additive")

    def _weights(self) -> Iterator[Finding]:
        """The scores stay as they are: perhaps the weights lose something."""
        if self.site.contraction is None or self.twin.contraction is None:
            return
        before, after = self.site.weights_at_values, self.twin.weights_at_values
        hidden = self.hidden.expand(self.site.scores.shape)
        sums = lost(before, after, hidden) if before.shape == hidden.shape else None
        if sums is not None:
            yield Finding(
                "mask-after-softmax",
                "bug",
                Sentence(
                    "{name} is applied to the weights, after the softmax: rows with masked keys sum to as little as "
                    "{sum:.3g}, and the weight of the masked keys is lost"
                ).format(name=self.name, sum=sums),
                _BEFORE,
                _after_softmax(self.twin),
            )


def _measured(patient: Patient, mask: MaskInput) -> Iterator[_Measured]:
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
            yield _Measured(patient, mask, ~allowed[:, None], site, twin)


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


def _infinite(patient: Patient) -> Iterator[Finding]:
    """A mask whose -inf is written into the weights: no call with it gives numbers, so no trial tells what it means."""
    known = {mask.parameter for mask in patient.interface.masks}
    roles = patient.interface.roles.items()
    inputs, probe = Probe(patient).inputs(), Probe(patient)
    for name in (name for name, role in roles if role in ("mask", "padding") and name not in known):
        for value in every_form(inputs):
            out = probe.attempt(inputs, given={name: value})
            if not isinstance(out, Tensor) or bool(out.isfinite().any()):
                continue
            for site in look(patient, given={name: value}).sites:
                read = site.grid is not None and site.contraction is not None
                if read and bool(site.weights.isfinite().all()) and bool(site.weights_at_values.isinf().any()):
                    yield Finding(
                        "mask-after-softmax",
                        "bug",
                        Sentence(
                            "where {name} hides one key of {key_length}, the softmax is finite, and the weights that "
                            "are multiplied with the values are not: the mask is written into the weights"
                        ).format(name=name, key_length=inputs.key_length),
                        _BEFORE,
                        _after_softmax(site),
                    )
                    return


def misled(act: Act, name: str, where: Where | None, *, additive: bool = False) -> Finding:
    """The finding of a mask that hides other cells than it should, or none. `additive`: it is meant to be added."""
    if act.kind == "filled":
        return too_small(name, act.value, where, ordinary=act.value > ORDINARY)
    severity: Severity = "bug"
    if act.kind == "lowered":
        kind, fix = "mask-fill-too-small", _FILL
        evidence = Sentence("{name} lowers masked scores by only {by:g}: ordinary scores outweigh that").format(
            name=name, by=-act.step
        )
    elif act.kind == "multiplied":
        kind, fix = "mask-multiplied", _BEFORE
        evidence = Sentence(
            "the scores are multiplied by {name}: masked scores become 0, which is an ordinary score"
        ).format(name=name)
    elif act.kind == "added":
        kind, fix = "mask-added", "use masked_fill(mask, -inf), or add 0 and -inf"
        severity = "risk" if additive else "bug"
        which = "forbidden" if act.cells else "allowed"
        evidence = Sentence(
            "{name} is added to the scores as it is: {which} cells change by {added:+g}, and no cell is masked"
        ).format(name=name, which=which, added=act.step)
    elif act.kind == "other example":
        b, h, other = act.place
        kind = "mask-head-order"
        fix = (
            "repeat the mask with repeat_interleave(H, dim=0) if scores are [B * H, Q, K] with the heads of an "
            "example adjacent"
        )
        evidence = Sentence(
            "{name} of example {other} acts on head {h} of example {b}: batch and heads are merged in different "
            "orders in the mask and in the scores"
        ).format(name=name, other=other, h=h, b=b)
    else:
        kind = "mask-broadcast"
        fix = "give the mask a shape that broadcasts to [B, H, Q, K]; that of padding [B, K] is [B, 1, 1, K]"
        evidence = Sentence("{name} masks other cells than it should: {cells} of {of} are wrong")
        if act.kind == "queries":
            evidence = Sentence("{name} masks queries instead of keys: the masked positions are still attended to")
        evidence = evidence.format(name=name, cells=act.cells, of=act.of)
    return Finding(kind, severity, evidence, fix, where)


def too_small(name: str, fill: float, where: Where | None, *, ordinary: bool) -> Finding:
    """The finding of a fill that scores can beat. `ordinary`: it is a score that keys have that are not masked."""
    typo = " (1e-9 for -1e9?)" if 0 < abs(fill) < 1e-3 else ""
    said = Sentence("{name} sets masked scores to only {fill:.6g}; lower scores, or large scores nearby, outweigh it")
    if ordinary:
        said = Sentence("{name} sets masked scores to {fill:.6g}{typo}, which is an ordinary score: they keep a weight")
    said = said.format(name=name, fill=fill, typo=typo)
    return Finding("mask-fill-too-small", "bug" if ordinary else "risk", said, _FILL, where)


def _after_softmax(site: Site) -> Where | None:
    """The line that masks the weights."""
    return site.where_masked([x for x in site.trace.steps if x.order > site.softmax.order])


def _otherwise_stated(patient: Patient, mask: MaskInput) -> Iterator[Finding]:
    """Text that plainly says another polarity than a trial showed."""
    if mask.works and mask.claimed not in (None, mask.form, "additive") and mask.form != "additive":
        says, does = ("may attend" if x == "allowed" else "forbidden" for x in (mask.claimed, mask.form))
        yield _polarity(
            mask,
            Sentence("{quoted} says that True in `{parameter}` = {says}; in the module True = {does}").format(
                quoted=_quoted(mask), parameter=mask.parameter, says=says, does=does
            ),
            patient.where,
        )


def _polarity(mask: MaskInput, evidence: str, where: Where | None) -> Finding:
    """A bug; but of names torch's own alone is plain: in others 1 is padding, or a real token."""
    named = mask.claim.startswith("the name ") and "key_padding_mask" not in mask.parameter
    fix = Sentence("invert the mask where it is applied (~{parameter}), or correct the documentation").format(
        parameter=mask.parameter
    )
    return Finding("mask-polarity", "risk" if named else "bug", evidence, fix, where)


def _quoted(mask: MaskInput) -> str:
    return mask.claim if mask.claim.startswith("the name ") else repr(mask.claim)
