"""A mask whose -inf is written into the weights, after the softmax: every output becomes infinite or NaN.

No trial can tell what such a mask means, since no call with it gives numbers. It is passed in the usual forms, hiding
one key of several; the trace shows whether the softmax was finite and the weights that meet the values are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import Probe
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.site import Site

FINDINGS = ("mask-after-softmax",)

_KEYS, _CELLS = ("BK", "B11K"), ("QK", "B1QK", "BQK")


def check(patient: Patient) -> Iterator[Finding]:
    interface = patient.interface
    known = {mask.parameter for mask in interface.masks}
    unknown = [name for name, role in interface.roles.items() if role in ("mask", "padding") and name not in known]
    if not unknown:
        raise NotApplicable("it is known what its masks mean")
    probe = Probe(patient)
    (batch, queries), keys = probe.inputs().query.shape[:2], probe.inputs().key_length
    for name in unknown:
        for plain, hiding in _forms(batch, queries, keys):
            site = _spoilt(patient, probe, {name: plain}, {name: hiding})
            if site is None:
                continue
            yield Finding(
                "mask-after-softmax",
                "bug",
                f"where {name} hides one key of {keys}, the softmax is finite, and the weights that are multiplied "
                "with the values are not: the mask is written into the weights",
                "fill the scores with -inf before the softmax, not the weights after it",
                site.where_masked([step for step in site.trace.steps if step.order > site.softmax.order]),
            )
            return


def _forms(batch: int, queries: int, keys: int) -> Iterator[tuple[Tensor, Tensor]]:
    """A mask that hides nothing, and one that hides key 1, in the usual shapes and dtypes."""
    sizes = {"B": batch, "Q": queries, "K": keys, "1": 1}
    for shape in (*_KEYS, *_CELLS):
        allowed = torch.ones([sizes[x] for x in shape], dtype=torch.bool)
        hiding = allowed.clone()
        hiding[..., 1] = False
        for dtype in (torch.bool, torch.int64, torch.float32):
            yield allowed.to(dtype), hiding.to(dtype)
            yield (~allowed).to(dtype), (~hiding).to(dtype)


def _spoilt(patient: Patient, probe: Probe, plain: dict[str, Any], hiding: dict[str, Any]) -> Site | None:
    """The attention whose weights the second mask spoils; None if it spoils none, or the first one does, too."""
    first = probe.attempt(probe.inputs(), given=plain)
    if not isinstance(first, Tensor) or not bool(first.isfinite().all()):
        return None
    second = probe.attempt(probe.inputs(), given=hiding)
    if not isinstance(second, Tensor) or bool(second.isfinite().any()):
        return None
    for site in look(patient, given=hiding).sites:
        if site.grid is None or site.contraction is None or not bool(site.weights.isfinite().all()):
            continue
        if bool(site.weights_at_values.isinf().any()):
            return site
    return None
