"""A soft cap or a scale that a module holds and that changes nothing.

The number is changed and the module called again. A scale may also be that of a fused kernel, or be applied elsewhere:
it is judged only where the scores are no multiple of the products that could be measured (wrong_scale.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, scaled
from headwise.doctor.reading.scale import measure

FINDINGS = ("softcap-ignored", "wrong-scale")

_CAP = re.compile(r"^_?(attn_|attention_|logits?_|scores?_)*(soft_?cap(ping)?|cap)(_value)?$")
_SCALE = re.compile(r"^_?(softmax_|attn_|attention_|sm_|qk_)?(scale|scaling)$")
_LESS = 128  # a power of two: what divides and multiplies by the number again rounds alike


def check(patient: Patient) -> Iterator[Finding]:
    if patient.is_library:
        raise NotApplicable("released code may keep a number that it does not use")
    probe = Probe(patient)
    held = [
        (part, name, value)
        for part in probe.module.modules()
        if not type(part).__module__.startswith("torch.")
        for name, value in vars(part).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0
    ]
    inputs = scaled(probe.inputs(), 10.0)
    for part, name, value in held:
        cap = bool(_CAP.match(name))
        if not cap and not (_SCALE.match(name) and _unmeasured(patient) and "scaled_dot" not in text_of(part)):
            continue
        before = probe.answers(inputs)
        setattr(part, name, value / _LESS)
        after = probe.attempt(inputs)
        setattr(part, name, value)
        if isinstance(after, Tensor) and gap(before, after) <= ROUNDING:
            yield Finding(
                "softcap-ignored" if cap else "wrong-scale",
                "bug",
                f"{name} = {value:.4g} of {type(part).__name__} has no effect: with {value / _LESS:.4g} the output is "
                "the same",
                f"{name} * tanh(scores / {name}), before the mask" if cap else f"multiply the scores by {name}, once",
                patient.where,
                numbers={"value": float(value)},
            )
            return


def _unmeasured(patient: Patient) -> bool:
    """Whether there are sums of several products whose factor is not known, of more than one key."""
    anatomy = patient.anatomy
    if anatomy is None or anatomy.again is None or not anatomy.sites:
        return False
    return not anatomy.run.single and all(
        measure(a, b) is None for a, b in zip(anatomy.sites, anatomy.again, strict=True) if a.grid and b.grid
    )
