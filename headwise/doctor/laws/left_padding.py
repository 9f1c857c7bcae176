"""The law that padding changes nothing, on whichever side it stands: positions count real tokens only.

Sequences are run alone, then with two tokens of padding after them, then with two before them. If the first two agree
and the third differs, the positions count padding too. That is a bug where the module generates from masked prompts,
which go on at their end, and a risk where a caller may pad on the right, or pass positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap
from headwise.language import Sentence

FINDINGS = ("left-padding",)

_REAL, _PADDING = 5, 2


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if probe.interface.takes == "memory" or probe.interface.length is not None:
        raise NotApplicable("its queries and keys are not one sequence, or have a fixed length")
    if isinstance(getattr(patient.module, "window_size", None), (tuple, list)):
        raise NotApplicable("its tokens are the places of a window with rows and columns")
    expected = probe.rowwise(probe.interface.inputs(2, _REAL, _REAL))
    right, left = (_padded(probe, real) for real in (slice(0, _REAL), slice(_PADDING, None)))
    if isinstance(right, Exception) or isinstance(left, Exception):
        raise NotApplicable("it takes no padding")
    if gap(expected, right) > ROUNDING:
        raise NotChecked("padding on the right already changes the result: its mask does not hide keys")
    change = gap(expected, left)
    if change > ROUNDING:
        meant = takes_prompts(patient) and patient.reports("left-padding: promised")
        so: str = Sentence("change the outputs of these by up to {change:.2g} of their size").format(change=change)
        why = "Its positions count padding"
        if change == torch.inf:
            so, why = "make outputs of these NaN", "The rows of padding have no key, and what they give is passed on"
        yield Finding(
            "left-padding",
            "bug" if meant else "risk",
            Sentence(
                "two tokens of padding before {real} real tokens {so}; after them they change nothing. {why}{more}"
            ).format(real=_REAL, so=so, why=why, more=", and `generate` takes such prompts" if meant else ""),
            "count positions over real tokens only: position_ids = padding_mask.cumsum(-1) - 1; or pad on the right",
        )


def takes_prompts(patient: Patient) -> bool:
    """Whether it is given padded prompts, which generation continues at their end."""
    generate = getattr(type(patient.module), "generate", None)
    return callable(generate) and any("mask" in name for name in inspect.signature(generate).parameters)


def _padded(probe: Probe, real: slice) -> Tensor | Exception:
    """The outputs of the real tokens among masked padding, also in what else forward requires for each token: actions,
    or positions, which the caller counts.
    """

    def pad(x: Tensor, fill: float = 0.5) -> Tensor:
        wide = x.new_full((x.shape[0], _REAL + _PADDING, *x.shape[2:]), fill)
        wide[:, real] = x
        return wide

    inputs = probe.interface.inputs(2, _REAL, _REAL)
    others = {
        name: pad(value, 0)
        for name, value in probe.others(inputs).items()
        if isinstance(value, Tensor) and value.shape[:2] == (2, _REAL) and probe.interface.roles.get(name) != "mask"
    }
    out = probe.attempt(inputs.each(pad), padding=pad(torch.ones(2, _REAL), 0).bool(), given=others)
    return out if isinstance(out, Exception) else out[:, real]
