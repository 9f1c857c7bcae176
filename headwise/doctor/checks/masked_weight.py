"""Whether a masked key takes no part: the output must be that of a call without it.

Code that zeroes padding, or masks after the normalisation, hides what a key says; the key still takes its share of
each row.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import ROUNDING, Probe, gap

FINDINGS = ("masked-key-counts",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    interface = probe.interface
    if interface.length or not interface.batched or interface.takes == "self":
        raise NotApplicable("its keys are not given apart from its queries, or their number is fixed")
    for mask in interface.masks:
        if not mask.works or mask.what != "keys" or mask.own or not mask.by_example:
            continue
        inputs = probe.inputs()
        keys = inputs.key_length
        hidden = probe.attempt(inputs, given=given(interface, mask, inputs, keys - 1))
        assert inputs.key is not None
        shorter = Inputs(inputs.query, inputs.key[:, :-1], None if inputs.value is None else inputs.value[:, :-1])
        without = probe.attempt(shorter, given=given(interface, mask, shorter))
        if isinstance(hidden, Tensor) and isinstance(without, Tensor) and hidden.isfinite().all():
            change = gap(without, hidden)
            if change > ROUNDING:
                yield Finding(
                    "masked-key-counts",
                    "bug",
                    f"the output with the last key masked by `{mask.parameter}` differs from that without this key by "
                    f"{change:.2g} of its size: what it says is hidden, but it keeps a weight",
                    "set its scores to -inf before the softmax; zeroing embeddings or weights is not masking",
                    numbers={"change": change},
                )
        return
    raise NotApplicable("it takes no mask of keys")
