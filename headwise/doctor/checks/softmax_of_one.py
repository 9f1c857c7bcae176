"""A softmax over an axis of one element, beside the axis of the keys: each weight is 1, whatever the scores are.

The scores of additive attention are [B, K, 1] before the last axis is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Softmaxes
from headwise.doctor.probing.probe import Probe

FINDINGS = ("softmax-axis",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    with Softmaxes() as softmaxes:
        probe.run(inputs)
    if not softmaxes.heard:
        raise NotApplicable("it calls no softmax")
    for x in softmaxes.heard:
        shape = list(x.scores.shape)
        keys_beside = shape[x.dim] == 1 and inputs.key_length > 1 and inputs.key_length in shape[1:]
        if keys_beside and not _has_one_key(patient, x.where):
            yield Finding(
                "softmax-axis",
                "bug",
                f"the softmax is taken over axis {x.dim} of scores {shape}, which has one element: every weight is 1, "
                f"and the {inputs.key_length} keys are on another axis",
                "take the softmax over the axis of the keys: softmax(dim=1) for scores [B, K, 1]",
                x.where,
                numbers={"axis": float(x.dim)},
            )
            return


def _has_one_key(patient: Patient, where: Where | None) -> bool:
    """Whether its weights meet a single value, as after pooling. Or they meet none, beside another softmax that
    meets some: it is left over.
    """
    sites = patient.anatomy.sites if patient.anatomy is not None else ()
    here = [site.contraction for site in sites if site.softmax.where == where]
    met = [x for x in here if x is not None]
    if here and not met:
        return any(site.contraction is not None for site in sites)
    return bool(met) and all(x.weights.value.shape[-1 if x.left else -2] == 1 for x in met)
