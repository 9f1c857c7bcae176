"""Global tokens: they see the whole sequence, and the whole sequence sees them.

Where forward is told which tokens are global, [B, T], a token at the end is marked. What was too far to see it must
then see it, as it must see what is far (Beltagy et al. 2020, section 3.1: "we make this attention operation
symmetric").
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows

FINDINGS = ("global-one-way",)

_NAME = re.compile(r"^(is_)?global_?(attn|attention)?_?(mask|tokens?|flags?)?$")
_LENGTHS = (24, 64, 160)
_ONE_WAY = re.compile(r"one[- ]way|asymmetric|directed|not symmetric|only (read|gather|collect)", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    name = next((x for x in probe.interface.roles if _NAME.match(x)), None)
    if name is None or probe.interface.takes != "self":
        raise NotApplicable("it is not told which tokens are global")
    if _ONE_WAY.search(patient.source):
        raise NotApplicable("it says that its global tokens are seen, or see, in one direction")
    for length in (probe.interface.length,) if probe.interface.length else _LENGTHS:
        for dtype in (torch.bool, torch.long, torch.float32):
            seen = _seen(probe, name, length, dtype)
            if seen is None:
                continue
            reads, is_read = seen
            if reads != is_read:
                what = (
                    "the last token then sees the first one, which does not see it"
                    if reads
                    else "the first token then sees it, and it does not see the first one"
                )
                yield Finding(
                    "global-one-way",
                    "bug",
                    f"with token {length - 1} of {length} marked as global ({name}), {what}",
                    "open the row and the column of each global token: allowed | g[:, :, None] | g[:, None, :]",
                    numbers={"length": float(length)},
                )
            return
    raise NotChecked(f"it does not run with {name} [B, T], or sees the whole sequence without it")


def _seen(probe: Probe, name: str, length: int, dtype: torch.dtype) -> tuple[bool, bool] | None:
    """Whether the last token, marked as global, sees the first one, and is seen by it. None where the first one sees it
    without the mark, or forward takes no such mark.
    """
    inputs = probe.inputs(1, length)
    first, last = moved(inputs, 0, 0), moved(inputs, 0, -1)
    mark = torch.zeros(1, length, dtype=dtype)
    mark[:, -1] = 1
    none = torch.zeros_like(mark)
    calls = ((inputs, none), (last, none), (inputs, mark), (first, mark), (last, mark))
    outs = [probe.attempt(x, given={name: m}) for x, m in calls]
    tensors = [x for x in outs if isinstance(x, Tensor) and x.shape[1] == length]
    if len(tensors) < len(outs):
        return None
    plain, local, marked, by_first, by_last = tensors
    if float(rows(plain, local)[0, 0]) > REACHED:
        return None
    return float(rows(marked, by_first)[0, -1]) > REACHED, float(rows(marked, by_last)[0, 0]) > REACHED
