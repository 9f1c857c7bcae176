"""A learned bias, or an additive mask, that is multiplied by the scale of the scores.

The definition is softmax(scale · q kᵀ + bias). Where the scale is applied to the sum, or folded into the exponent, the
bias of a checkpoint acts by a fraction of its size. It is measured: the bias is changed, and the scores change with it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.events import FORBIDDEN, Step
from headwise.doctor.reading.scale import behind_the_product, off_its_mean
from headwise.doctor.reading.site import Site

FINDINGS = ("wrong-scale",)


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    made = 0
    for bias in _biases(patient, anatomy):
        made += 1
        for site, where, factor, scale in _measured(patient, anatomy, bias):
            if abs(scale - 1) < 1e-2 or not math.isclose(factor, scale, rel_tol=1e-2):
                continue
            yield Finding(
                "wrong-scale",
                patient.severity("wrong-scale: of a bias", "bug"),
                f"{bias.words} is added to the products of queries and keys, and multiplied by {factor:.4f}, "
                "their scale, with them; it should be added to the scaled scores as it is",
                "scale q kᵀ first, then add the bias: softmax(q @ k.mT * scale + bias)",
                where or site.softmax.where,
                numbers={"factor": factor, "scale": scale},
            )
            return
    if not made:
        raise NotApplicable("nothing of its own is added to the scores")


@dataclasses.dataclass(frozen=True)
class _Bias:
    """What may be added: in words, and two calls between which its numbers differ by `numbers`."""

    words: str
    numbers: Tensor
    change: Callable[[nn.Module], None] | None = None
    first: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # arguments of `look`
    second: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _biases(patient: Patient, anatomy: Anatomy) -> Iterator[_Bias]:
    multiplied = {name for seed in anatomy.run.seeds if seed.left is not None for name in seed.name.split(", ")}
    added = {
        name
        for site in anatomy.sites
        for step in site.steps_before
        if step.name == "add" and step.names.isdisjoint(multiplied)
        for name in step.names
    }
    noise = {
        name: torch.randn(x.shape, generator=torch.Generator().manual_seed(i))
        for i, (name, x) in enumerate(patient.module.named_parameters())
        if name in added
    }

    def change(module: nn.Module) -> None:
        with torch.no_grad():
            for name, x in module.named_parameters():
                if name in noise:
                    x.add_(noise[name].to(x))

    if noise:
        yield _Bias(" and ".join(sorted(noise)), torch.cat([x.flatten() for x in noise.values()]), change)
    mask = next((m for m in patient.interface.masks if m.form == "additive" and m.what == "cells" and m.works), None)
    if mask is not None:
        name = mask.parameter
        plain: Tensor = given(patient.interface, mask, anatomy.inputs)[name]
        draw = torch.randn(plain.shape, generator=torch.Generator().manual_seed(1)).to(plain)
        calls = ({"given": {name: plain}}, {"given": {name: plain + draw}})
        yield _Bias(f"the numbers of {name}", draw.flatten(), None, *calls)


def _measured(patient: Patient, anatomy: Anatomy, bias: _Bias) -> Iterator[tuple[Site, Where | None, float, float]]:
    """For each attention: where it is added, its factor, and the factor of the products."""
    first = look(patient, **bias.first).sites if bias.first else anatomy.sites
    second = look(patient, change=bias.change, **bias.second).sites
    twins = anatomy.again
    if twins is None or not len(first) == len(second) == len(twins) == len(anatomy.sites):
        return
    for base, twin, a, b in zip(anatomy.sites, twins, first, second, strict=True):
        if any(x.grid is None or x.scores.shape != base.scores.shape for x in (base, twin, a, b)):
            continue
        scale, found = behind_the_product(base, twin), _factor(a, b, bias.numbers)
        if scale is not None and found is not None:
            yield a, found[1], found[0], scale


def _factor(a: Site, b: Site, numbers: Tensor) -> tuple[float, Where | None] | None:
    """By how much of the change of what is added the scores change, and where it is added."""
    for one, two in zip(a.steps_before, b.steps_before, strict=False):
        changed = _change(a, one, b, two)
        if changed is None or not _among(changed[changed.isfinite()], numbers):  # as it is, not divided before
            continue
        got = b.scores - a.scores
        valid = changed.isfinite() & got.isfinite() & (a.scores > FORBIDDEN)
        changed, got = (off_its_mean(x, valid)[valid] for x in (changed, got))
        if changed.numel() < 4 or float(changed.abs().max()) < 1e-6:
            continue
        factor = float((changed @ got) / (changed @ changed))
        if float((got - factor * changed).abs().max()) <= 1e-3 * float(got.abs().max()):
            return factor, one.where
    return None


def _change(a: Site, one: Step, b: Site, two: Step) -> Tensor | None:
    """[B, H, Q, K]: how far the operands of an addition differ between two forwards; None if they do not."""
    if one.name != "add" or two.name != "add" or one.source.shape != two.source.shape:
        return None
    for x, y in zip(one.arguments[:2], two.arguments[:2], strict=True):
        if isinstance(x, Tensor) and isinstance(y, Tensor) and x.shape == y.shape and not torch.equal(x, y):
            return a.cells((y.double() - x.double()).expand(one.source.shape), one.source)
    return None


def _among(some: Tensor, numbers: Tensor) -> bool:
    """Whether each of some numbers is one of these, or 0."""
    known = torch.cat([numbers.double(), torch.zeros(1, dtype=torch.float64)]).sort().values
    at = torch.searchsorted(known, some.contiguous())
    near = torch.stack([(known[(at - i).clamp(0, len(known) - 1)] - some).abs() for i in (0, 1)]).amin(0)
    return bool((near <= 1e-5).all())
