"""Whether two calls in eval mode give the same output: dropout must not be active there."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.foreign import foreign_backend
from headwise.doctor.patient import Patient
from headwise.doctor.probing.listen import Dice, Throw
from headwise.doctor.probing.probe import Probe, gap

FINDINGS = ("dropout-in-eval", "state-kept")


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    again = gap(before, probe.output(inputs))
    if again > 0:
        yield Finding(
            "state-kept",
            "risk" if _continues(probe) else "bug",
            f"a second call with the same input and the same random numbers differs from the first by {again:.2g} of "
            "the output's size: the module keeps state from its last call",
            "keep no state between calls, or take it as an argument and return it",
            numbers={"change": again},
        )
        return
    change = gap(before, probe.output(inputs, seed=1))
    if change == 0:
        return
    throws = _heard(probe, inputs)
    cause = next((x for x in throws if x.p), next((x for x in throws if x.dropout), throws[0] if throws else None))
    seen = f"two calls in eval mode with the same input differ by up to {change:.2g} of the output's size"
    numbers = {"change": change}
    if cause is not None and cause.p is not None:
        attempt = _stilled(probe, inputs)
        only = "; with it disabled they are the same" if attempt == 0 else ""
        yield Finding(
            "dropout-in-eval",
            "bug",
            f"{seen}: {_words(cause)} acts{only}",
            _fix(cause),
            where=cause.where,
            numbers={**numbers, "p": cause.p},
        )
        return
    outside = bool(foreign_backend(patient.module)) and _has_dropout(patient)
    by_hand = outside or (cause is not None and cause.dropout)
    what = f": {cause.function} is called" if cause is not None else ""
    what = ": it has dropout, which acts although training=False was passed" if outside else what
    yield Finding(
        "dropout-in-eval",
        "bug" if by_hand else patient.severity("dropout-in-eval: random numbers", "risk"),
        f"{seen}{what}",
        "pass training= on to its dropout" if outside else "draw random numbers only if self.training is True",
        where=cause.where if cause is not None else None,
        numbers=numbers,
    )


def _continues(probe: Probe) -> bool:
    """Whether a call is perhaps meant to continue the last one: it can be told where it is, or the module to forget."""
    interface = probe.interface
    told = [x for x in interface.roles if interface.roles[x] in ("cache", "positions") or "cache" in x.lower()]
    return bool(told) or any(re.match(r"(reset|clear|empty|start|begin)", name) for name in dir(type(probe.module)))


def _has_dropout(patient: Patient) -> bool:
    """Whether a layer of another framework has dropout, by its parts or its code."""
    return "dropout(" in patient.source.lower() or any(
        "Dropout" in type(part).__name__ for part in patient.module.modules()
    )


def _heard(probe: Probe, inputs: Inputs) -> list[Throw]:
    with Dice() as dice:
        probe.output(inputs)
    return dice.heard


def _stilled(probe: Probe, inputs: Inputs) -> float:
    outs: list[Tensor] = []
    for seed in (0, 1):
        with Dice(still=True):
            outs.append(probe.output(inputs, seed=seed))
    return gap(*outs)


def _words(throw: Throw) -> str:
    name = {"scaled_dot_product_attention": "the dropout_p of scaled_dot_product_attention"}.get(
        throw.function, throw.function
    )
    return f"{name} with p = {throw.p:g}"


def _fix(throw: Throw) -> str:
    if throw.function == "scaled_dot_product_attention":
        return "pass dropout_p=self.dropout if self.training else 0.0"
    return (
        "pass training=self.training to F.dropout, or use an nn.Dropout that is registered (not in a plain list), so "
        "that eval() reaches it"
    )
