"""Whether a padding mask [B, K] acts on the keys of its own example: not on queries, not on heads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import claims
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import REACHED, Probe, rows
from headwise.doctor.reading.edges import starts_at_rows

FINDINGS = ("mask-broadcast",)

Lay = Callable[[Tensor], Tensor]  # from [B, K] to the shape that is passed
_SHAPES: dict[str, Lay] = {
    "[B, K]": lambda x: x,
    "[B, 1, K]": lambda x: x[:, None],
    "[B, K, 1]": lambda x: x[..., None],
    "[B, 1, 1, K]": lambda x: x[:, None, None],
}
_BK = re.compile(r"[\[(]\s*(b|bs|bsz|n|batch(_?size)?)\s*[,x]\s*\w+\s*[\])]")
_DTYPES = (torch.bool, torch.int64, torch.float32)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    probe.rowwise(probe.inputs())
    roles = probe.interface.roles
    if not any(role in ("mask", "padding") for role in roles.values()):
        raise NotApplicable("it takes no mask")
    for name, role in roles.items():
        mine = [m for m in probe.interface.masks if m.parameter == name and m.works]
        edges = starts_at_rows(patient, name)
        if role in ("mask", "padding") and not mine and not (edges and edges[1]):
            yield from _queries(probe, name)
        if role == "padding" and not any(m.shape == "BK" for m in mine):
            yield from _other_axis(probe, name, "bug" if not mine or _promised(probe, name) else "risk")


def _promised(probe: Probe, name: str) -> bool:
    """Whether the code says that this mask is [B, K]."""
    lines = claims.text_of(probe.module).lower().splitlines()
    return any(name.lower() in line and _BK.search(line) for line in lines)


def _moved(probe: Probe, inputs: Inputs, name: str, lay: Lay, dtype: torch.dtype, mark: Tensor) -> Tensor | None:
    """[B, Q]: which rows change when the marked positions [B, K] of a mask of ones are set to 0."""
    outs = []
    for mask in (torch.ones_like(mark), ~mark):
        out = probe.attempt(inputs, given={name: lay(mask).to(dtype)})
        if isinstance(out, Exception):
            return None
        outs.append(out)
    return rows(*outs) > REACHED


def _queries(probe: Probe, name: str) -> Iterator[Finding]:
    """A mark at token 1 of every example changes row 1 alone: the mask hides the query, not the key."""
    inputs = probe.square(3, 5)
    mark = torch.zeros(3, 5, dtype=torch.bool)
    mark[:, 1] = True
    for shape, lay in _SHAPES.items():
        for dtype in _DTYPES:
            moved = _moved(probe, inputs, name, lay, dtype, mark)
            if moved is None or not moved.any():
                continue
            if bool((moved == mark).all()):
                yield _finding(
                    f"{name} {shape} hides queries instead of keys: masking token 1 changes row 1 and none of the 4 "
                    "others, which still attend to the key",
                    "broadcast it over queries: mask[:, None, None, :] with scores [B, H, Q, K]",
                    {"rows": int(moved.sum()), "of": moved.numel()},
                    "bug" if probe.interface.takes == "self" else "risk",
                )
            return


def _other_axis(probe: Probe, name: str, severity: Severity) -> Iterator[Finding]:
    """[B, K] used as [Q, K] where B = Q, or as [H, K] where B = H: masking example 1 changes other examples."""
    heads = probe.interface.heads or 1
    for axis, length, batch in (("Q", 4, 4), ("H", 5, heads)):
        if batch < 2 or (axis == "H" and batch > 16):
            continue
        inputs = probe.square(batch, length)
        mark = torch.zeros(batch, length, dtype=torch.bool)
        mark[1, 1] = True
        for dtype in _DTYPES:
            for shape in ("[B, K]", "[B, 1, K]"):
                moved = _moved(probe, inputs, name, _SHAPES[shape], dtype, mark)
                if moved is None or not moved.any():
                    continue
                others = [b for b in range(batch) if b != 1]
                if moved[others].any():
                    what = "[Q, K]" if axis == "Q" else "[H, K]"
                    yield _finding(
                        f"{name} {shape} is used as {what}, since both have {batch} rows: padding of example 1 alone "
                        f"changes {int(moved[others].any(-1).sum())} of the {batch - 1} other examples",
                        "broadcast it as mask[:, None, None, :] with scores [B, H, Q, K]",
                        {"examples": int(moved[others].any(-1).sum()), "of": batch - 1},
                        severity,
                    )
                    return


def _finding(evidence: str, fix: str, numbers: dict[str, float], severity: Severity) -> Finding:
    return Finding("mask-broadcast", severity, evidence, fix, numbers=numbers)
