"""The law: if all nodes of a graph are alike, its edges change nothing, since the weights of a node sum to 1.

It is for attention whose scores are no product of queries and keys, such as additive attention over edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headwise.doctor.calling.interface import Inputs, MaskInput
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import Calls
from headwise.doctor.probing.probe import ROUNDING, Probe, rows
from headwise.errors import DoctorError

FINDINGS = ("softmax-axis",)

_N = 5
_SOFTMAX = (torch.softmax, functional.softmax, Tensor.softmax, torch.exp, Tensor.exp, torch.exp_, Tensor.exp_)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    masks = [m for m in probe.interface.masks if m.what == "cells"]
    listed = [] if masks else _listed(patient)
    if probe.interface.takes != "self" or not (masks or listed):
        raise NotApplicable("it takes no edges")
    if patient.anatomy is not None and any(x.grid is not None for x in patient.anatomy.sites):
        raise NotApplicable("its scores are a product of queries and keys")
    if masks:
        yield from _of_mask(probe, masks[0])
    else:
        yield from _of_list(probe, *listed[0])


def _of_mask(probe: Probe, mask: MaskInput) -> Iterator[Finding]:
    inputs = _alike(probe.inputs(length=_N))
    n = inputs.query.shape[1]
    at = probe.interface.way.sizes(inputs)
    others = {name: make(at) for name, make in probe.interface.way.extras if name != mask.parameter}
    unlike = [k for k, x in others.items() if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3]
    if unlike:
        raise NotChecked(f"the tokens of `{unlike[0]}` are not alike")
    every = torch.ones(n, n, dtype=torch.bool)
    some = every.tril()  # every node has a key, and nodes have different numbers of them
    whole, part = (_out(probe, inputs, given=_given(probe, mask, inputs, cells)) for cells in (every, some))
    if float(rows(whole, whole[:, :1].expand_as(whole)).amax()) > ROUNDING:
        raise NotChecked("tokens that are alike have different outputs: it has positions")
    change = float(rows(whole, part).amax())
    if change > ROUNDING:
        yield _finding(f"if all tokens are alike, `{mask.parameter}` still changes the output", change)


def _listed(patient: Patient) -> list[tuple[str, Tensor]]:
    """The arguments of the given call that list edges, [2, E], if nothing but nodes and edges is passed."""
    at = patient.interface.way.sizes(patient.interface.inputs(1))
    values = [(name, make(at)) for name, make in patient.interface.way.extras]
    found = [(k, x) for k, x in values if isinstance(x, Tensor) and not x.is_floating_point()]
    return [(k, x) for k, x in found if len(values) == 1 and x.ndim == 2 and x.shape[0] == 2]


def _of_list(probe: Probe, name: str, edges: Tensor) -> Iterator[Finding]:
    """All nodes that have edges must have the same output."""
    out = _out(probe, _alike(probe.inputs()))
    nodes = [n for n in edges[0].unique().tolist() if n in edges[1]]  # as starts and as ends
    change = float(rows(out, out[:, nodes[:1]].expand_as(out))[:, nodes].amax()) if nodes else 0.0
    if change > ROUNDING:
        yield _finding(f"if all nodes are alike, the edges in `{name}` still make their outputs differ", change)


def _finding(seen: str, change: float) -> Finding:
    return Finding(
        "softmax-axis",
        "bug",
        f"{seen}, by up to {change:.2g} of its size: the weights that a node sums over do not sum to 1, so the softmax "
        "is not over them",
        "take the softmax over what the weights are summed over: the keys of a query, or the edges that end at a node",
        numbers={"change": change},
    )


def _alike(inputs: Inputs) -> Inputs:
    return inputs.each(lambda x: x[:, :1].expand_as(x).clone())


def _out(probe: Probe, inputs: Inputs, **options: Any) -> Tensor:
    """The output; NotApplicable if no softmax or exponential is taken for it."""
    with Calls(_SOFTMAX, lambda *_, **__: None) as calls:
        out = probe.rowwise(inputs, **options)
    if not calls.noted:
        raise NotApplicable("it has no softmax")
    return out


def _given(probe: Probe, mask: MaskInput, inputs: Inputs, cells: Tensor) -> dict[str, Tensor]:
    laid = cells.expand(inputs.query.shape[0], *cells.shape)
    try:
        return {mask.parameter: mask.value(laid, probe.interface.heads or 1, inputs.query.dtype)}
    except DoctorError as problem:
        raise NotChecked(str(problem)) from None
