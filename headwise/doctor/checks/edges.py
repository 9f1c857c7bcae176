"""Edges of a graph: whether node t attends to node s where adj[s, t] is documented as an edge from s to t.

Where no product of queries and keys can be read, as in additive attention, it is also tested whether weights sum to 1:
if all nodes are alike, no adjacency can change the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of
from headwise.doctor.calling.interface import MaskInput
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, moved, rows
from headwise.errors import DoctorError

FINDINGS = ("mask-broadcast", "softmax-axis")

_PLACE = r"\b{name}\[\s*(?:\w+\s*,\s*)?(?P<row>\w+)\s*,\s*(?P<column>\w+)\s*\][^.;]{{0,60}}?"
_NODE = r"(?:node |the |vertex )*"
_TO = rf"\bfrom {_NODE}(?P<start>\w+) to {_NODE}(?P<end>\w+)\b"
_RECEIVES = (
    rf"(?:\bif |\bnode )\W*{_NODE}(?P<end>\w+) (?:receives|attends|listens)\b"
    rf"[^.;]{{0,30}}?(?:from|to) {_NODE}(?P<start>\w+)\b"
)
_N = 5


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    masks = [m for m in probe.interface.masks if m.what == "cells"]
    listed = _listed(patient)
    if probe.interface.takes != "self" or not (masks or listed):
        raise NotApplicable("it takes no edges")
    if not masks:
        yield from _sums_of_listed(patient, probe, *listed[0])
        return
    mask = masks[0]
    said = starts_at_rows(patient, mask.parameter)
    if said is not None:
        yield from _direction(probe, mask, *said)
    read = patient.anatomy is not None and any(x.grid is not None for x in patient.anatomy.sites)
    if not read and _has_softmax(patient):
        yield from _sums(probe, mask)


def starts_at_rows(patient: Patient, name: str) -> tuple[str, bool] | None:
    """What is said of name[row, column], and whether the row is where an edge starts; None if nothing is said."""
    text = re.sub(r"\s+", " ", text_of(patient.module)).replace("``", "")
    for way in (_TO, _RECEIVES):
        said = re.search(_PLACE.format(name=re.escape(name)) + way, text)
        if said and {said["start"], said["end"]} == {said["row"], said["column"]} and said["start"] != said["end"]:
            return said.group(0), said["start"] == said["row"]
    return None


def _direction(probe: Probe, mask: MaskInput, said: str, starts_at_rows: bool) -> Iterator[Finding]:
    """One edge, from node 0 to node 1, as it is documented; every node also sees itself."""
    inputs = probe.inputs(length=_N)
    cells = torch.eye(inputs.query.shape[1], dtype=torch.bool)
    cells[(0, 1) if starts_at_rows else (1, 0)] = True
    given = _given(probe, mask, cells)
    out = probe.rowwise(inputs, given=given)
    along, against = (
        float(rows(out, probe.output(moved(inputs, slice(None), node), given=given))[:, 1 - node].amax())
        for node in (0, 1)
    )
    if along <= REACHED < against:
        yield Finding(
            "mask-broadcast",
            "bug",
            f"{said!r}: with one edge, from node 0 to node 1, node 0 attends to node 1 (by {against:.2g} of the "
            f"output's size) and node 1 does not attend to node 0: `{mask.parameter}` is read transposed",
            f"attend where {mask.parameter}.transpose(-1, -2) has an edge: the rows of scores [Q, K] are receivers",
            numbers={"change": against},
        )


def _sums(probe: Probe, mask: MaskInput) -> Iterator[Finding]:
    """All nodes alike: their values are the same, and so is a sum of them with weights that sum to 1."""
    inputs = probe.inputs(length=_N).each(lambda x: x[:, :1].expand_as(x).clone())
    n = inputs.query.shape[1]
    at = probe.interface.way.sizes(inputs)
    others = {name: make(at) for name, make in probe.interface.way.extras if name != mask.parameter}
    unlike = [k for k, x in others.items() if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 3]
    if unlike:
        raise NotChecked(f"the tokens of `{unlike[0]}` are not alike")
    every = torch.ones(n, n, dtype=torch.bool)
    some = every.tril()  # every node has a key, and nodes have different numbers of them
    outs = [probe.rowwise(inputs, given=_given(probe, mask, cells)) for cells in (every, some)]
    if float(rows(outs[0], outs[0][:, :1].expand_as(outs[0])).amax()) > ROUNDING:
        raise NotChecked("tokens that are alike have different outputs: it has positions")
    change = float(rows(*outs).amax())
    if change > ROUNDING:
        yield Finding(
            "softmax-axis",
            "bug",
            f"if all tokens are alike, `{mask.parameter}` still changes the output, by up to {change:.2g} of its size: "
            "the weights of a query over its keys do not sum to 1, so the softmax is not over the keys",
            "take the softmax over the axis of the keys, the one that the weights are summed over",
            numbers={"change": change},
        )


def _listed(patient: Patient) -> list[tuple[str, Tensor]]:
    """The arguments of the given call that list edges, [2, E], if nothing but nodes and edges is passed."""
    at = patient.interface.way.sizes(patient.interface.inputs(1))
    values = [(name, make(at)) for name, make in patient.interface.way.extras]
    if len(values) != 1:
        return []
    return [
        (name, x)
        for name, x in values
        if isinstance(x, Tensor) and not x.is_floating_point() and x.ndim == 2 and x.shape[0] == 2
    ]


def _sums_of_listed(patient: Patient, probe: Probe, name: str, edges: Tensor) -> Iterator[Finding]:
    """The same where the edges are a list: all nodes that have some must then have the same output."""
    if not _has_softmax(patient):
        raise NotApplicable("it has no softmax")
    inputs = probe.inputs().each(lambda x: x[:, :1].expand_as(x).clone())
    out = probe.rowwise(inputs)
    nodes = [n for n in edges[0].unique().tolist() if n in edges[1]]  # as starts and as ends
    change = float(rows(out, out[:, nodes[:1]].expand_as(out))[:, nodes].amax()) if nodes else 0.0
    if change > ROUNDING:
        yield Finding(
            "softmax-axis",
            "bug",
            f"if all nodes are alike, the edges in `{name}` still make their outputs differ, by up to {change:.2g} of "
            "their size: the weights that a node sums over do not sum to 1, so the softmax is not over its edges",
            "group the softmax by the node at which messages are summed",
            numbers={"change": change},
        )


def _has_softmax(patient: Patient) -> bool:
    """Whether there is a softmax, be it written out: exp(...), and a division by what was summed up at the nodes."""
    texts = [text_of(part) for part in patient.module.modules()]
    return any(re.search(r"softmax\(", x) or re.search(r"\bexp\(.*\b(index|scatter)_add.* / ", x, re.S) for x in texts)


def _given(probe: Probe, mask: MaskInput, cells: Tensor) -> dict[str, Tensor]:
    inputs = probe.inputs(length=_N)
    laid = cells.expand(inputs.query.shape[0], *cells.shape)
    try:
        return {mask.parameter: mask.value(laid, probe.interface.heads or 1, inputs.query.dtype)}
    except DoctorError as problem:
        raise NotChecked(str(problem)) from None
