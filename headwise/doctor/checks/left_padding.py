"""Whether padding on the left changes the output: positions must count real tokens only.

An example is run alone, then with two tokens of padding after it, then with two before it. If the first two agree and
the third differs, the positions count padding too. That is a bug where the module's own text speaks of such input,
and a risk where a caller may pad on the right, or pass positions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import claims
from headwise.doctor.calling.forward_arguments import Sizes
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap
from headwise.errors import shortened

FINDINGS = ("left-padding",)

_REAL, _PADDING = 5, 2
_LEFT = re.compile(
    r"\b(zeros?|pad\w*)[^.]*\b(left|(either|both|any) sides?)\b|\bleft\b[\w -]*\bpad"
    r"|\bprompts?\b[^.]*\bpadd|\bpadd\w*[^.]*\bprompts?\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(no|not|never|without|instead of|unsupported|only)\b|\bF\.pad|functional\.pad", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if probe.interface.takes == "memory" or probe.interface.length is not None:
        raise NotApplicable("its queries and keys are not one sequence, or have a fixed length")
    if isinstance(getattr(patient.module, "window_size", None), (tuple, list)):
        raise NotApplicable("its tokens are the places of a window with rows and columns")
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
        meant = promised(patient)
        if changes["left"] < float("inf"):
            so = f"change the outputs of these by up to {changes['left']:.2g} of their size"
            why = "Its positions count padding"
        else:
            so, why = "make outputs of these NaN", "The rows of padding have no key, and what they give is passed on"
        yield Finding(
            "left-padding",
            "bug" if meant else "risk",
            f"two tokens of padding before {_REAL} real tokens {so}; after them they change nothing. {why}"
            + (f', and it is meant for such input: "{meant}"' if meant else ""),
            "count positions over real tokens only: position_ids = padding_mask.cumsum(-1) - 1; or pad on the right",
            numbers={"left": changes["left"], "right": changes["right"]},
        )


def promised(patient: Patient) -> str:
    """Where its text speaks of padding on the left, or of padded prompts, which generation continues at their end."""
    if not patient.reports("left-padding: promised"):
        return ""
    text = " ".join(claims.text_of(patient.module).split())
    for sentence in re.split(r"(?<=[.;#])\s|\"\"\"", text):
        if _LEFT.search(sentence) and not _NOT.search(sentence):
            return shortened(sentence.strip(), 80)
    generate = getattr(type(patient.module), "generate", None)
    if callable(generate) and any("mask" in name for name in inspect.signature(generate).parameters):
        return "def generate"
    return ""


def _padded(probe: Probe, side: str) -> Tensor | Exception:
    """The outputs of the real tokens, with masked padding on one side, also in what else forward requires for each
    token: actions, or positions, which the caller counts.
    """
    real = slice(0, _REAL) if side == "right" else slice(_PADDING, None)

    def pad(x: Tensor, fill: float = 0.5) -> Tensor:
        wide = x.new_full((x.shape[0], _REAL + _PADDING, *x.shape[2:]), fill)
        wide[:, real] = x
        return wide

    inputs = probe.interface.inputs(2, _REAL, _REAL)
    x = inputs.query
    at = Sizes(2, _REAL, _REAL, x.shape[2], x.dtype, x.device, probe.interface.batch_first)
    values = {name: make(at) for name, make in probe.interface.way.extras}
    others = {
        name: pad(value, 0)
        for name, value in values.items()
        if isinstance(value, Tensor) and value.shape[:2] == (2, _REAL) and probe.interface.roles.get(name) != "mask"
    }
    padding = torch.zeros(2, _REAL + _PADDING, dtype=torch.bool)
    padding[:, real] = True
    out = probe.attempt(inputs.each(pad), padding=padding, given=others)
    return out if isinstance(out, Exception) else out[:, real]
