"""Shifted windows: tokens that the cyclic shift brought together from opposite borders must not attend to one another.

The map is also tried with a side that is no multiple of the window: its padding must lie where the mask expects it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import names, sizes
from headwise.doctor.calling.claims import text_of
from headwise.doctor.calling.way import MAPS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe
from headwise.doctor.reading.anatomy import look

FINDINGS = ("shift-mask",)

_WINDOWS = ["window_size", "ws", "win_size", "window"]
_SHIFTS = ["shift_size", "shift", "shift_sizes"]


def check(patient: Patient) -> Iterator[Finding]:
    row = _side_of_rows(patient)
    if patient.interface.way.layout not in MAPS and not row:
        raise NotApplicable("its input is no map")
    window, shift = _number(patient, _WINDOWS), _number(patient, _SHIFTS)
    if not window or not shift or not shift < window <= 8:
        raise NotApplicable("its windows are not shifted")
    probe = Probe(patient)
    measured = False
    for side in (row,) if row else (2 * window, 2 * window - 1):
        reached = _reached(patient, probe, side)
        if reached is None:
            continue
        measured = True
        at = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        apart = (at[:, None] - at).abs().amax(-1)
        far = apart > window
        if bool(reached[apart == window].any()):
            raise NotApplicable("tokens that are further apart than a window reach one another in any case")
        pairs = int((reached & far).sum())
        if pairs:
            yield Finding(
                "shift-mask",
                patient.severity(
                    "shift-mask: between borders", "bug" if re.search("mask", text_of(patient.module)) else "risk"
                ),
                f"in a map of {side} x {side} with windows of {window} that are shifted by {shift}, {pairs} pairs of "
                f"tokens at opposite borders attend to one another: they are {window + 1} or more places apart",
                "mask the pairs of different regions: number the regions of the padded and shifted map, cut the "
                "numbers into windows as the tokens are cut, and compare them",
                numbers={"pairs": float(pairs), "side": float(side)},
            )
            return
    if not measured:
        raise NotChecked("it does not take a map of two windows")


def _side_of_rows(patient: Patient) -> int:
    """The side of a square map whose tokens are given in one row, [B, H * W, M]; 0 if any number of tokens works."""
    interface = patient.interface
    side = math.isqrt(interface.length or 0)
    return side if interface.way.layout == "BNM" and side**2 == interface.length else 0


def _number(patient: Patient, wanted: list[str]) -> int:
    """The value of an attribute that is a number, or the same number twice."""
    for place, name in itertools.product(sizes.places(patient.module), wanted):
        found = names.attribute(place, [name], lambda x: isinstance(x, (int, tuple, list)) and not isinstance(x, bool))
        if found is None:
            continue
        values = {found[1]} if isinstance(found[1], int) else set(found[1])
        if len(values) == 1 and isinstance(value := values.pop(), int):
            return value
    return 0


def _reached(patient: Patient, probe: Probe, side: int) -> Tensor | None:
    """[Q, K]: which tokens attend to which, in a map of this side; None if it does not take one.

    By the weights, where they can be read: a norm over the whole map also lets every token reach every other.
    """
    try:
        sites = look(patient, batch=1, length=side * side).sites
        if len(sites) == 1 and sites[0].grid is not None:
            return sites[0].attended(side * side) > REACHED
        return probe.influence(probe.interface.inputs(1, side * side, side * side)) > REACHED
    except Exception:
        return None
