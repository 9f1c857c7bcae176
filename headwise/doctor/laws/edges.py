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
from headwise.language import Sentence

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
    inputs = probe.inputs(length=_N).each(lambda x: x[:, :1].expand_as(x).clone())
    if masks:
        name, nodes = masks[0].parameter, list(range(inputs.query.shape[1]))
        change = _of_mask(probe, inputs, masks[0], nodes)
    else:
        name, edges = listed[0]
        nodes = [n for n in edges[0].unique().tolist() if n in edges[1]]  # as starts and as ends
        change = _differ(probe, inputs, nodes)
    if change > ROUNDING:
        yield Finding(
            "softmax-axis",
            "bug",
            Sentence(
                "if all nodes are alike, the edges in `{name}` still make their outputs differ, by up to {change:.2g} "
                "of their size: the weights that a node sums over do not sum to 1, so the softmax is not over them"
            ).format(name=name, change=change),
            "take the softmax over what the weights are summed over: the keys of a query, or the edges that end at a "
            "node",
        )


def _of_mask(probe: Probe, inputs: Inputs, mask: MaskInput, nodes: list[int]) -> float:
    """How far the outputs of nodes differ that have different numbers of keys."""
    at = probe.interface.way.sizes(inputs)
    others = {name: make(at) for name, make in probe.interface.way.extras if name != mask.parameter}
    unlike = [k for k, x in others.items() if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3]
    if unlike:
        raise NotChecked(Sentence("the tokens of `{unlike}` are not alike").format(unlike=unlike[0]))

    def differ(cells: Tensor) -> float:
        laid = cells.expand(len(inputs.query), *cells.shape)
        value = mask.value(laid, probe.interface.heads or 1, inputs.query.dtype)
        return _differ(probe, inputs, nodes, given={mask.parameter: value})

    every = torch.ones(len(nodes), len(nodes), dtype=torch.bool)
    if differ(every) > ROUNDING:
        raise NotChecked("tokens that are alike have different outputs: it has positions")
    return differ(every.tril())


def _listed(patient: Patient) -> list[tuple[str, Tensor]]:
    """The arguments of the given call that list edges, [2, E], if nothing but nodes and edges is passed."""
    at = patient.interface.way.sizes(patient.interface.inputs(1))
    values = [(name, make(at)) for name, make in patient.interface.way.extras]
    found = [(k, x) for k, x in values if isinstance(x, Tensor) and not x.is_floating_point()]
    return [(k, x) for k, x in found if len(values) == 1 and x.ndim == 2 and x.shape[0] == 2]


def _differ(probe: Probe, inputs: Inputs, nodes: list[int], **options: Any) -> float:
    """How far the outputs of these nodes differ; NotApplicable if no softmax or exponential is taken for them."""
    with Calls(*_SOFTMAX) as calls:
        out = probe.rowwise(inputs, **options)
    if not calls.number:
        raise NotApplicable("it has no softmax")
    return float(rows(out, out[:, nodes[:1]].expand_as(out))[:, nodes].amax()) if nodes else 0.0
