"""A residual that is dropped: h = x + attention, then x + mlp(norm(h)) where h + mlp(norm(h)) is meant.

The block trains, but its attention reaches the output only through the MLP. It comes from a variable that still holds
the old residual. The trace has two sums with the same tensor x: x + attention, which no later sum takes, and x + mlp.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.events import Step
from headwise.doctor.reading.site import Site

FINDINGS = ("residual-dropped",)


def check(patient: Patient) -> Iterator[Finding]:
    anatomy = patient.see()
    sums = [step for step in anatomy.run.steps if step.latest and _rows(step, 0) and _rows(step, 1)]
    if len(sums) < 2:
        raise NotApplicable("it adds no two residuals")
    for site in anatomy.sites:
        met = site.contraction
        if met is None:
            continue
        for first in sums:
            kept = _kept(first, site, met.product.number)
            second = None if kept is None else _again(first, kept, sums)
            if second is None or not _follows(patient, anatomy, site, second):
                continue
            yield Finding(
                "residual-dropped",
                "bug",
                "the input and the output of the attention are added, but the next residual adds the input again and "
                "not this sum: the attention reaches the output only through what is computed from it",
                "add the sum: h = x + attention(norm(x)), then h + mlp(norm(h)); renew the residual before each part",
                second.where,
            )
            return


def _rows(step: Step, which: int) -> bool:
    """Whether an operand holds a vector for each token."""
    x = step.arguments[which]
    return isinstance(x, Tensor) and x.ndim >= 2 and x.shape == step.source.shape


def _kept(step: Step, site: Site, number: int) -> int | None:
    """Which operand of a sum with the attention's output is what was there before; None if it is no such sum."""
    for kept, added in ((0, 1), (1, 0)):
        if step.order > site.softmax.order and step.latest[added] >= number > step.latest[kept]:
            return kept
    return None


def _again(first: Step, kept: int, sums: list[Step]) -> Step | None:
    """A later sum that takes the same tensor, where no later sum takes the first one."""
    x = first.arguments[kept]
    total = first.arguments[0] + first.arguments[1]
    later = [step for step in sums if step.order > first.order]
    if any(_same(y, total) for step in later for y in step.arguments):
        return None
    for step in later:
        for which in (0, 1):
            if _same(step.arguments[which], x) and step.latest[1 - which] > first.latest[1 - kept]:
                return step
    return None


def _follows(patient: Patient, anatomy: Anatomy, site: Site, second: Step) -> bool:
    """Whether other values of the attention change the second sum: it is not that of a branch beside it."""
    names = {name for seed in site.projections.get("v", ()) for name in seed.name.split(", ") if name}

    def change(module: nn.Module) -> None:
        with torch.no_grad():
            for name, x in module.named_parameters():
                if name in names:
                    x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x))

    steps = look(patient, change=change).run.steps
    at = anatomy.run.steps.index(second)
    if not names or len(steps) != len(anatomy.run.steps):
        return False
    return any(not _same(a, b) for a, b in zip(second.arguments[:2], steps[at].arguments[:2], strict=True))


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
