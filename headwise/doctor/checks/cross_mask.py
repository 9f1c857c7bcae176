"""Whether cross-attention masks the memory's keys by the memory's mask, and not by that of the queries.

Both sequences get the same length, so that a mask of one fits the other. Then a mask of the queries hides token 1;
token 1 of the memory must still be visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.mask_input import MaskInput, encode
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import about_memory, given
from headwise.doctor.probing.probe import REACHED, Probe, moved, rows

FINDINGS = ("cross-mask",)

_N = 5
_FORMS = (("allowed", torch.bool), ("forbidden", torch.bool), ("allowed", torch.float32), ("additive", torch.float32))


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    masks = [name for name in probe.interface.roles if "mask" in name.lower() or names.role(name) == "padding"]
    if probe.interface.takes != "memory" or not masks:
        raise NotApplicable("it takes no memory, or no mask")
    if probe.interface.length == 1:
        raise NotApplicable("it takes one query, which needs no mask of its own")
    inputs = probe.square(length=_N)
    if max(_memory(probe, inputs, {})) <= REACHED:
        raise NotChecked("its output does not depend on the memory")
    of_memory = [name for name in masks if about_memory(probe.interface, name)]
    for name in masks:
        about = about_memory(probe.interface, name)
        if about or (about is None and (not of_memory or _of_both(probe, name))):
            continue
        others = _open(probe, of_memory, inputs)
        for value in _values(probe.interface.masks, name, inputs.query.shape[1]):
            hidden, seen = _memory(probe, inputs, {**others, name: value})
            if hidden <= REACHED < seen:
                yield Finding(
                    "cross-mask",
                    "bug",
                    f"{name}, the mask of the queries' own tokens, hides keys of the memory: with token 1 masked in "
                    f"it, memory token 1 no longer changes any row, while memory token 2 still does (by {seen:.2g} of "
                    "the output's size)",
                    "pass cross-attention the padding mask of the memory, of the memory's length: "
                    "memory_key_padding_mask",
                    numbers={"hidden": hidden, "seen": seen},
                )
                break


def _of_both(probe: Probe, name: str) -> bool:
    """Whether it is known to mask cells [Q, K] of as many keys as the memory has."""
    mask = next((m for m in probe.interface.masks if m.parameter == name), None)
    return mask is not None and mask.works and mask.what == "cells" and not mask.own and probe.rectangular


def _memory(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> tuple[float, float]:
    """How far the output changes with token 1 of the memory, and with token 2; NaN if it does not run."""
    before = probe.attempt(inputs, given=options)
    if isinstance(before, Exception) or not before.isfinite().all():
        return torch.nan, torch.nan
    first, second = (probe.output(moved(inputs, slice(None), key), given=options) for key in (1, 2))
    return float(rows(before, first).amax()), float(rows(before, second).amax())


def _open(probe: Probe, of_memory: list[str], inputs: Inputs) -> dict[str, Any]:
    """The memory's own masks, with every key allowed."""
    found: dict[str, Any] = {}
    for mask in probe.interface.masks:
        if mask.parameter in of_memory and mask.works and mask.parameter not in found:
            found |= given(probe.interface, mask, inputs)
    return found


def _values(masks: tuple[MaskInput, ...], name: str, n: int) -> Iterator[Tensor]:
    """Token 1 hidden, in every usual shape and form; first the form that is known to work."""
    known = [(mask.form, mask.dtype) for mask in masks if mask.parameter == name and mask.works]
    keys = torch.ones(3, n, dtype=torch.bool)
    keys[:, 1] = False
    cells = keys[:, None].expand(3, n, n)
    forms = dict.fromkeys(known or _FORMS)
    for form, dtype in forms:
        for allowed in (keys, keys[:, None, None], cells[0], cells, cells[:, None]):
            yield encode(allowed, form, dtype)  # type: ignore[arg-type]
