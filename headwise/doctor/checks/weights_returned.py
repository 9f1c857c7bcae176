"""Whether the returned weights are those of every head, and whether their rows sum to 1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import Probe

FINDINGS = ("weights-averaged", "softmax-axis", "mask-after-softmax")

_PER_HEAD = re.compile(r"average|per_head|head_weights|mean")
_NEAR = 1e-3


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    weights = _weights(probe, {})
    options: dict[str, Any] = {}
    if weights is None:
        flags = [
            name
            for name, role in probe.interface.roles.items()
            if role == "weights-flag" and name in probe.interface.flags
        ]
        options = {"given": dict.fromkeys(flags, True)}
        weights = _weights(probe, options)
    if weights is None:
        raise NotApplicable("it returns no weights")
    yield from _averaged(probe, weights)
    yield from _sums(probe, weights, options)


def _weights(probe: Probe, options: dict[str, Any]) -> Tensor | None:
    """[B, ..., Q, K], as returned."""
    try:
        weights = probe.run(probe.inputs(), **options).weights
    except Exception:
        return None
    return None if weights is None else weights.detach()


def _averaged(probe: Probe, weights: Tensor) -> Iterator[Finding]:
    heads = probe.interface.heads or 1
    batch = probe.inputs().query.shape[0]
    squeezed = weights.ndim == 4 and weights.shape[1] == 1
    if heads < 2 or not (squeezed or (weights.ndim == 3 and weights.shape[0] == batch)):
        return
    flag = next((name for name in probe.interface.roles if _PER_HEAD.search(name)), "")
    yield Finding(
        "weights-averaged",
        "note" if flag else "risk",
        f"the returned weights have the shape {list(weights.shape)}: one map for {heads} heads"
        + (f", unless {flag} says otherwise" if flag else ", and no argument asks for all of them"),
        f"pass {flag} to see every head" if flag else "return [B, H, Q, K], and let the caller take the mean",
        numbers={"heads": heads},
    )


def _sums(probe: Probe, weights: Tensor, options: dict[str, Any]) -> Iterator[Finding]:
    rows, columns = (_off(weights, dim) for dim in (-1, -2))
    if rows > _NEAR and columns <= _NEAR:
        low, high = (float(x) for x in weights.sum(-1).aminmax())
        yield Finding(
            "softmax-axis",
            "bug",
            f"the returned weights sum to 1 over the queries; over the keys they sum to {low:.3g} … {high:.3g}",
            "softmax(scores, dim=-1), with scores [..., Q, K]",
            numbers={"least": low, "most": high},
        )
    if rows > _NEAR:
        return
    for mask in hiding(probe.inputs(), 1):
        masked = _weights(probe, {**options, **mask})
        if masked is None:
            continue
        low = float(masked.sum(-1).amin())
        if low < 1 - _NEAR and float(masked[..., 1].abs().amax()) <= 1e-6:
            yield Finding(
                "mask-after-softmax",
                "bug",
                f"with one key hidden the returned weights sum to as little as {low:.3g}; without a mask, to 1. They "
                "are masked after the softmax",
                "mask the scores with -inf before the softmax",
                numbers={"least": low},
            )
        return


def _off(weights: Tensor, dim: int) -> float:
    """How far the sums over a dimension differ from 1."""
    return float((weights.float().sum(dim) - 1).abs().amax().nan_to_num(torch.inf))
