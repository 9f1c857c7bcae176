"""Whether padding on the left changes the output: positions must count real tokens only.

An example is run alone, then with two tokens of padding after it, then with two before it. If the first two agree and
the third differs, the positions count padding too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap

FINDINGS = ("left-padding",)

_REAL, _PADDING = 5, 2


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if probe.interface.takes == "memory" or probe.interface.length is not None:
        raise NotApplicable("its queries and keys are not one sequence, or have a fixed length")
    alone = probe.interface.inputs(2, _REAL, _REAL)
    expected = probe.rowwise(alone)
    changes = {}
    for side in ("right", "left"):
        out = _padded(probe, side)
        if isinstance(out, Exception):
            raise NotApplicable("it takes no padding")
        changes[side] = gap(expected, out)
    if changes["right"] > ROUNDING:
        raise NotChecked("padding on the right already changes the result: its mask does not hide keys")
    if changes["left"] > ROUNDING:
        yield Finding(
            "left-padding",
            "risk",
            f"two tokens of padding before {_REAL} real tokens change the outputs of these by up to "
            f"{changes['left']:.2g} of their size; after them they change nothing. Its positions count padding",
            "count positions over real tokens only: position_ids = padding_mask.cumsum(-1) - 1; or pad on the right",
            numbers={"left": changes["left"], "right": changes["right"]},
        )


def _padded(probe: Probe, side: str) -> Tensor | Exception:
    """The outputs of the real tokens, with masked padding on one side."""
    real = slice(0, _REAL) if side == "right" else slice(_PADDING, None)

    def pad(x: Tensor) -> Tensor:
        wide = torch.full((x.shape[0], _REAL + _PADDING, x.shape[2]), 0.5, dtype=x.dtype, device=x.device)
        wide[:, real] = x
        return wide

    inputs = probe.interface.inputs(2, _REAL, _REAL).each(pad)
    padding = torch.zeros(2, _REAL + _PADDING, dtype=torch.bool)
    padding[:, real] = True
    out = probe.attempt(inputs, padding=padding)
    return out if isinstance(out, Exception) else out[:, real]
