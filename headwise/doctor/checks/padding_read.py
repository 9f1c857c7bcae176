"""What stands in padding must not reach the outputs of a module that knows from its ids which tokens are padding.

The embeddings of padding are changed, on the right of the real tokens and on the left. A module whose mask is shifted,
or which reads a text off one token too late, gives another output both times. One that is meant for padding on one side
alone may read it on the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.calling.token_ids import is_on_embeddings, padded
from headwise.doctor.checks.masked_weight import convolving
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.padded_ids import pad_of
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows

FINDINGS = ("padding-read",)

_PADDED = 2
_AFTER, _BEFORE = slice(-_PADDED, None), slice(0, _PADDED)


def check(patient: Patient) -> Iterator[Finding]:
    module, interface = patient.original, patient.interface
    if not is_on_embeddings(patient.module) or not re.search(r"pad|!= ?0|\.ne\(0\)", text_of_all(module)):
        raise NotApplicable("it takes no token ids, or knows no padding among them")
    if convolving(module):
        raise NotApplicable("it brings the numbers of one token to its neighbours by convolutions or an RNN")
    if interface.takes != "self" or interface.masks:  # RoBERTa counts positions by its ids, and is given a mask
        raise NotApplicable("its ids are not one sequence, or a mask says which of them are padding")
    probe = Probe(patient)
    after, before = (_change(probe, pad_of(module), place) for place in (_AFTER, _BEFORE))
    if after is None or before is None:
        raise NotApplicable("its output does not depend on which ids are padding")
    if min(after, before) > REACHED:
        yield Finding(
            "padding-read",
            "bug",
            f"other numbers in the embeddings of padding (id {pad_of(module)}) change the output of the real tokens, "
            f"by {after:.2g} of its size with {_PADDED} tokens of padding after them and by {before:.2g} with "
            f"{_PADDED} before them",
            "mask the keys that are padding, pool over real tokens alone, and count positions of tokens from 0",
            patient.where,
            numbers={"after": after, "before": before},
        )


def _change(probe: Probe, pad: int, place: slice) -> float | None:
    """How far padding in this place changes the output of the real tokens; None if it is not taken for padding."""
    inputs = probe.inputs(length=probe.interface.length or 6)
    length = inputs.query.shape[1]
    hidden = list(range(length))[place]
    real = [n for n in range(length) if n not in hidden]

    def output(other: bool) -> Tensor:
        given = inputs
        for n in hidden if other else ():
            given = moved(given, 0, n)
        out = probe.output(given)[:1]
        return out[:, real] if out.shape[1] == length else out

    try:
        plain = output(False)
        with padded(pad, place):
            told, other = output(False), output(True)
    except Exception as error:
        raise NotChecked(f"it does not run on ids with padding: {type(error).__name__}") from None
    if not bool(told.isfinite().all()) or torch.equal(plain, told):
        return None
    return float(rows(told, other).amax())
