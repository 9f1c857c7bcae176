"""Whether train and eval mode compute the same once dropout is disabled.

Dropout keeps its probability, so that the code takes its training path, but passes everything through. Batch norm
differs between modes by design: it stays in eval mode, and that is reported as a note.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.masking import given, hiding
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, quiet

FINDINGS = ("train-eval-differ",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    norms = [m for m in probe.module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for name, options in (_calls(inputs) | _graded(probe, inputs)).items():
        with Dice(still=True):
            expected = probe.attempt(inputs, **options)
        if not isinstance(expected, Tensor):
            continue
        found = _trained(patient, inputs, norms=False, **options)
        if isinstance(found, Exception):
            if _trains_as_given(patient) or _trains_in_groups(patient, inputs.query.shape[1]):
                raise NotChecked(f"in train mode it takes other lengths: {found}")
            yield _finding(f"{name} it runs in eval mode but raises in train mode: {type(found).__name__}: {found}", {})
            return
        change = gap(expected, found)
        if change <= ROUNDING:
            continue
        still = _trained(patient, inputs, norms=True, **options) if norms else None
        if isinstance(still, Tensor) and gap(expected, still) <= ROUNDING:
            yield Finding(
                "train-eval-differ",
                "note",
                f"train and eval mode differ by {change:.2g} of the output's size because of its {len(norms)} batch "
                "norms",
                "nothing, if batch norm is intended; attention usually has layer norm",
                numbers={"change": change},
            )
            return
        yield _finding(
            f"{name} train and eval mode differ by up to {change:.2g} of the output's size, with dropout disabled",
            {"change": change},
        )
        return


def _trains_as_given(patient: Patient) -> bool:
    """Whether the call of the example runs in train mode, such as one with a number of queries that groups divide."""
    with contextlib.suppress(Exception), quiet():
        patient.call_given(Probe(patient).module.train())
        return True
    return False


def _trains_in_groups(patient: Patient, length: int) -> bool:
    """Whether it trains with a multiple of one of its settings, such as the number of groups of its queries."""
    for n in {x for x in vars(patient.module).values() if type(x) is int and 1 < x <= 64}:
        probe = Probe(patient)
        probe.module.train()
        if length % n and isinstance(probe.attempt(probe.inputs(length=length * n)), Tensor):
            return True
    return False


def _finding(evidence: str, numbers: dict[str, float]) -> Finding:
    return Finding(
        "train-eval-differ",
        "bug",
        evidence,
        "compute the same in both modes; only dropout may depend on self.training",
        numbers=numbers,
    )


def _calls(inputs: Inputs) -> dict[str, dict[str, Any]]:
    """The calls to compare: without a mask, and with a mask that hides key 1, since one code path may drop it."""
    cells, padding = hiding(inputs, 1)
    return {"without a mask": {}, "with a mask": cells, "with padding": padding}


def _graded(probe: Probe, inputs: Inputs) -> dict[str, dict[str, Any]]:
    """A call with an additive mask of small numbers, since one path may take it for a mask of 0 and 1."""
    mask = next((m for m in probe.interface.masks if m.form == "additive" and m.works), None)
    if mask is None:
        return {}
    plain: Tensor = given(probe.interface, mask, inputs)[mask.parameter]
    graded = -torch.rand(plain.shape, generator=torch.Generator().manual_seed(1)).to(plain)
    return {f"with numbers from -1 to 0 in {mask.parameter}": {"given": {mask.parameter: graded}}}


def _trained(patient: Patient, inputs: Inputs, *, norms: bool, **options: Any) -> Tensor | Exception:
    """The output in train mode with dropout disabled; NotChecked if it is still random."""
    probe = Probe(patient)
    probe.module.train()
    for part in probe.module.modules():
        if norms and isinstance(part, nn.modules.batchnorm._BatchNorm):
            part.eval()
    for loud in (True, False):
        with Dice(still=True):
            outs = [probe.attempt(inputs, seed=seed, **options) for seed in (0, 1)]
        if isinstance(outs[0], Exception) or isinstance(outs[1], Exception):
            return outs[0]
        if gap(outs[0], outs[1]) == 0:
            return outs[0]
        if loud:
            quieten(probe.module)
    raise NotChecked("train mode is random, and not through a dropout whose probability could be set to 0")


def quieten(module: nn.Module) -> None:
    """Set every number whose name begins with drop to 0, in the module, its submodules and their configs."""
    for part in module.modules():
        places = [part, *(x for name, x in vars(part).items() if "config" in name or name in ("cfg", "args"))]
        for place in places:
            mine = type(place).__name__.lower()
            for name, value in list(getattr(place, "__dict__", {}).items()):
                dropping = "drop" in name.lower() or ("drop" in mine and name in ("p", "prob", "rate"))
                if dropping and isinstance(value, float):
                    setattr(place, name, 0.0)
