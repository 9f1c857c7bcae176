"""Outputs that stand at other positions than their queries: a shift, a sort or a cut into windows that is not undone.

Where a query attends to a part of the keys, its output depends on these. An output that does not depend on what the
query of its position attends to, and depends on what that query cannot see, belongs to another query.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe
from headwise.doctor.reading.anatomy import look

FINDINGS = ("output-misplaced",)

_LENGTH = 16
_CLEAR = 1e-3  # of a weight, or of the output's size


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes != "self" or len(patient.see().sites) != 1:
        raise NotApplicable("it is no single attention of a sequence to itself")
    length = patient.interface.length or _LENGTH
    try:
        sites = look(patient, batch=1, length=length).sites
        probe = Probe(patient)
        influence = probe.influence(probe.interface.inputs(1, length, length))
    except Exception as error:
        raise NotChecked(f"it does not run with {length} tokens: {type(error).__name__}") from None
    if len(sites) != 1 or influence.shape != (length, length):
        return
    weights = sites[0].attended(length)
    if bool((weights > 0).all()):
        raise NotApplicable("every query attends to every key")
    others = ~torch.eye(length, dtype=torch.bool)  # a residual connection adds the token itself
    lost = ((weights > _CLEAR) & (influence <= REACHED) & others).any(1)
    foreign = ((weights == 0) & (influence > _CLEAR) & others).any(1)
    wrong = lost & foreign
    if bool(((weights > 0) == (influence > REACHED).T)[others.T].all()):
        return  # queries and keys are taken for one another
    if 4 * int(wrong.sum()) >= length:
        row = int(wrong.nonzero()[0])
        seen = [int(k) for k in (weights[row] > _CLEAR).nonzero()[:, 0]]
        depends = [int(k) for k in (influence[row] > _CLEAR).nonzero()[:, 0]]
        yield Finding(
            "output-misplaced",
            "bug",
            f"the outputs of {int(wrong.sum())} of {length} positions belong to other queries: query {row} attends to "
            f"{seen}, and output {row} depends on {depends}",
            "undo what was done to the order of the tokens: a shift by -s with a shift by +s, a permutation with its "
            "inverse",
            sites[0].softmax.where,
            numbers={"positions": float(wrong.sum())},
        )
