"""Whether gradients reach the same parameters when forward is given an empty cache that it fills.

A cache may keep detached keys and values for later calls. If the call itself attends to them, it trains no key or value
projection, without an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.decoding import Filled, Steps, sessions
from headwise.doctor.probing.probe import ROUNDING, Probe, gap
from headwise.doctor.probing.reached import gradients_of, trainable

FINDINGS = ("gradient-blocked",)

_LENGTH = 6
_TRAINED = re.compile(r"differentiab|gradients? (\w+ )?(flow|reach|pass)|back-?prop|train\w* with", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    interface = probe.interface
    steps = Steps(interface, _LENGTH, (patient.example or ((), {}))[1])
    wanted = trainable(probe)
    if interface.takes != "self" or interface.length is not None or not steps.caches or not wanted:
        raise NotApplicable("forward takes no cache, or has nothing to train")
    inputs = interface.inputs(2, _LENGTH, _LENGTH)
    without = gradients_of(probe, inputs, wanted)
    for session in sessions(steps):
        if not isinstance(session, Filled):
            continue
        given = {**session.options(0), **steps.started(0, _LENGTH)}
        with_it = gradients_of(probe, inputs, wanted, given=given)
        if without is None or with_it is None:
            continue  # it decodes without gradients
        lost = sorted(without.keys() - with_it.keys())
        fresh = {**session.anew().options(0), **steps.started(0, _LENGTH)}
        again = probe.attempt(inputs, given=fresh)
        if lost and not isinstance(again, Exception) and gap(probe.output(inputs), again) <= ROUNDING:
            said = _TRAINED.search(text_of(patient.module))
            yield Finding(
                "gradient-blocked",
                "bug" if said else "risk",
                f"with an empty cache ({session.how}) the output is the same, and {len(lost)} of {len(wanted)} "
                f"parameters get no gradient: {', '.join(lost[:4])}"
                + (f"; its text says {said.group(0)!r}" if said else "; nothing says that it is trained with a cache"),
                "store detached keys and values if you like, and attend to those that still have their gradient",
                numbers={"parameters": len(wanted), "blocked": len(lost)},
            )
        return
