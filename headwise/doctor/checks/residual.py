"""A residual that is dropped.

- h = x + attention, then x + mlp(norm(h)) where h + mlp(norm(h)) is meant: a variable still holds the old residual. The
  trace has two sums with the same tensor x: x + attention, which no later sum takes, and x + mlp.
- x = attention(x) where x + attention(x) is meant: with one projection set to 0 the block forgets its input. Only where
  a block is said to have residuals, or is called a layer or block and has two norms, as they have.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling.way import noise
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.documents import documents
from headwise.doctor.reading.events import Step
from headwise.doctor.reading.site import Site

FINDINGS = ("residual-dropped",)


def check(patient: Patient) -> Iterator[Finding]:
    lost = list(_lost(patient))
    yield from lost
    if lost:
        return
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


_ADDS = re.compile(
    r"\b(x|h|src|tgt|inputs?|hidden_states|hidden|tokens)\s*\+\s*[\w.]+\(|\bskip[- ]connection|\badd\s*(&|and)\s*norm"
    r"|\bresiduals?\b(?! (attention|score|dropout|vector|quant))",
    re.IGNORECASE,
)
_NONE = re.compile(
    r"\b(no|not|without|outside|caller|excluding|before|optional\w*|follow\w*|lives?|elsewhere)\b"
    r"|\b(of|around) the block\b",
    re.IGNORECASE,
)
_NORM = re.compile(r"norm", re.IGNORECASE)
_OF_HEADS = re.compile(r"(^|[._])(q|k|query|key)(_|[A-Z]|norm|$)")  # a norm of queries or keys


def _lost(patient: Patient) -> Iterator[Finding]:
    """Whether the output still depends on the queries where one part gives 0."""
    sentences = re.split(r"(?<=[.;])\s|\n\s*\n", "\n\n".join(documents(patient.module)))
    said = next((" ".join(x.split()) for x in sentences if _ADDS.search(x) and not _NONE.search(x)), "")
    blocks = {path: part for path, part in patient.module.named_modules() if _is_block(part)}
    passed = any(re.search("resid", name) for name in patient.interface.roles)  # what is added is an argument (Bloom)
    if patient.is_library or passed or not (said or blocks):
        return
    values = [{n for seed in x.projections.get("v", ()) for n in seed.name.split(", ")} for x in patient.see().sites]
    values += [  # and the last layer of each MLP
        {f"{path}.{name}.weight".lstrip(".")}
        for path, block in blocks.items()
        for name, x in block.named_modules()
        if isinstance(x, nn.Linear) and x.in_features >= 2 * x.out_features
    ]
    probe = Probe(patient)
    inputs = probe.inputs()
    if probe.rowwise(inputs).shape != inputs.query.shape:
        return
    other = noise(*inputs.query.shape, seed=71, dtype=inputs.query.dtype, device=inputs.query.device)
    for names in (x - {""} for x in values):
        if not names:
            continue
        silent = Probe(patient)
        with torch.no_grad():
            for name, x in silent.module.named_parameters():
                if name in names:
                    x.zero_()
        change = gap(silent.output(inputs), silent.output(dataclasses.replace(inputs, query=other)))
        if change < ROUNDING:
            yield Finding(
                "residual-dropped",
                "bug",
                f"with {', '.join(sorted(names))} set to 0 the output does not depend on the queries' tokens: nothing "
                "is added to what this part gives" + (f", and its text says {said[:80]!r}" if said else ""),
                "add the input of each part to its output: x + attention(norm(x)), or norm(x + attention(x))",
                patient.where,
                numbers={"change": change},
            )
            return


def _is_block(part: nn.Module) -> bool:
    """Whether it is called a layer or a block, and has two norms at least: one for each of its branches."""
    kind = type(part)
    norms = [path for path, x in part.named_modules() if path and _NORM.search(type(x).__name__)]
    named = re.search(r"(Layer|Block)$", kind.__name__) is not None and not kind.__module__.startswith("torch.")
    return named and sum(not _OF_HEADS.search(path) for path in norms) > 1


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
    if len(x) > 1 and torch.equal(x[0], x[1]):
        return None  # the same for all examples: learned positions, which each layer adds again
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
