"""What stands in padding must not reach the outputs of a module that knows from its ids which tokens are padding.

The embeddings of padding are changed, on the right of the real tokens and on the left. A module whose mask is shifted,
or which reads a text off one token too late, gives another output both times. One that is meant for padding on one side
alone may read it on the other. Some attend to all padding, as SASRec does: a row of zeros where the table has a
padding_idx. That is a risk, and a bug if some tokens of padding are hidden and others are not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.calling.token_ids import is_on_embeddings, padded
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import convolving
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
    pad = pad_of(module)
    changes = [_changes(probe, pad, place) for place in (_AFTER, _BEFORE)]
    if not all(changes):
        raise NotApplicable("its output does not depend on which ids are padding")
    after, before = map(max, changes)
    of_zeros = any(x.padding_idx == pad for x in module.modules() if isinstance(x, nn.Embedding))
    if min(after, before) > REACHED:
        yield Finding(
            "padding-read",
            "risk" if of_zeros and all(min(x) > REACHED for x in changes) else "bug",
            f"other numbers in the embeddings of padding (id {pad}) change the output of the real tokens, "
            f"by {after:.2g} of its size with {_PADDED} tokens of padding after them and by {before:.2g} with "
            f"{_PADDED} before them",
            "mask the keys that are padding, pool over real tokens alone, and count positions of tokens from 0",
            patient.where,
            numbers={"after": after, "before": before},
        )


def _changes(probe: Probe, pad: int, place: slice) -> list[float]:
    """How far each token of padding in this place changes the output of the real tokens; none if it is not taken for
    padding.
    """
    inputs = probe.inputs(length=probe.interface.length or 6)
    length = inputs.query.shape[1]
    hidden = list(range(length))[place]
    real = [n for n in range(length) if n not in hidden]

    def output(other: int | None = None) -> Tensor:
        out = probe.output(inputs if other is None else moved(inputs, 0, other))[:1]
        return out[:, real] if out.shape[1] == length else out

    try:
        plain = output()
        with padded(pad, place):
            told, others = output(), [output(n) for n in hidden]
    except Exception as error:
        raise NotChecked(f"it does not run on ids with padding: {type(error).__name__}") from None
    if not bool(told.isfinite().all()) or torch.equal(plain, told):
        return []
    return [float(rows(told, other).amax()) for other in others]
