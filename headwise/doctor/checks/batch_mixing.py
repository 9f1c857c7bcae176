"""Whether examples of a batch influence one another, through their tokens or through their masks.

One example is changed; the outputs of the others must stay bit-identical. An example alone must also give what it gives
in a batch, and at every place in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import MAPS, tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap, moved, rows
from headwise.doctor.reading.documents import documents

FINDINGS = ("batch-mixing", "mask-head-order")

_BATCH_LATER = re.compile(r"[\[(]\s*\w+\s*,\s*\w+\s*,\s*(batch\w*|bsz|B)\s*,\s*\w+\s*[\])]")


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if not probe.interface.batched:
        raise NotApplicable("it takes no batch, one example at a time")
    if probe.interface.way.layout in MAPS and _BATCH_LATER.search("\n".join(documents(patient.module))):
        raise NotChecked("its text says that the batch is not the first axis of a map")
    inputs = probe.inputs()
    before = probe.answers(inputs)
    others = [0, 2]

    change = rows(before, probe.output(moved(inputs, 1, queries=True)))[others]
    if float(change.amax()) > REACHED:
        reached = int((change > REACHED).sum())
        yield Finding(
            "batch-mixing",
            patient.severity("batch-mixing: in the outputs", "bug"),
            f"after a change of example 1 alone, {reached} of the {change.numel()} rows of examples 0 and 2 changed, "
            f"by up to {float(change.amax()):.2g} of the output's size",
            "keep the batch dimension separate: split heads with view(B, N, H, D).transpose(1, 2), and do not reduce "
            "over the batch dimension",
            numbers={"change": float(change.amax()), "rows": reached, "of": change.numel()},
        )
        return

    change_beside = _beside(probe, inputs)
    if change_beside > REACHED:
        yield Finding(
            "batch-mixing",
            "bug",
            "after a change of example 1 alone, what else is returned for examples 0 and 2 changed, by up to "
            f"{change_beside:.2g} of its size",
            "keep the batch dimension separate: take the softmax over the keys, and do not reduce over the batch",
            numbers={"change": change_beside},
        )
        return

    alone = probe.attempt(inputs.each(lambda x: x[:1]))
    difference = gap(before[:1], alone) if isinstance(alone, Tensor) else 0.0  # an error is reported by checks/sizes.py
    if difference > ROUNDING:
        yield Finding(
            "batch-mixing",
            "bug",
            f"example 0 alone gives another output than in a batch of 3: up to {difference:.2g} of the output's size",
            "do not depend on the number of examples; squeeze() without a dimension drops a batch of 1",
            numbers={"change": difference},
        )
    else:
        yield from _places(probe, inputs)
    yield from _masks(probe)


def _beside(probe: Probe, inputs: Inputs) -> float:
    """How far the other examples change in what is returned beside the output, such as the logits beside a state."""
    batch, largest = inputs.query.shape[0], 0.0
    raws = (probe.run(x).raw for x in (inputs, moved(inputs, 1, queries=True)))
    for (_, before), (_, after) in zip(*map(tensors_in, raws), strict=False):
        axes = [axis for axis, size in enumerate(before.shape[:2]) if size == batch]
        if before.shape == after.shape and len(axes) == 1 and before.ndim > 1:
            others = torch.tensor([n for n in range(batch) if n != 1])
            change = rows(before.index_select(axes[0], others), after.index_select(axes[0], others))
            largest = max(largest, float(change.amax()))
    return largest


def _places(probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """The same example at several places of a batch."""
    first = inputs.query.shape[0] * [0]
    if _told_apart(probe, inputs):
        return  # by an argument that the doctor passes
    same = inputs.each(lambda x: x[first])
    out, again = probe.attempt(same), probe.attempt(same, seed=1)
    if not isinstance(out, Tensor) or not isinstance(again, Tensor) or gap(out, again) > 0:
        return  # random numbers: checks/determinism.py
    difference = gap(out[:1].expand_as(out), out)
    if difference > ROUNDING:
        yield Finding(
            "batch-mixing",
            "bug",
            f"an example that stands in a batch three times has three outputs: they differ by up to {difference:.2g} "
            "of the output's size",
            "make positions and tables for the length, x.shape[1], and not for the batch, x.shape[0]",
            numbers={"change": difference},
        )


def _told_apart(probe: Probe, inputs: Inputs) -> bool:
    """Whether the other arguments of forward differ from example to example."""
    way, batch = probe.interface.way, inputs.query.shape[0]
    for _, make in way.extras:
        value = make(way.sizes(inputs))
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(x, Tensor) and x.ndim > 2 and x.shape[0] == batch * way.heads:
                x = x.unflatten(0, (batch, -1))
            if isinstance(x, Tensor) and any(
                n == batch and not bool((x == x.narrow(dim, 0, 1)).all()) for dim, n in enumerate(x.shape[:2])
            ):
                return True
    return False


def _masks(probe: Probe) -> Iterator[Finding]:
    """Masks that act on another example: repeated over heads in one order, merged with batch and heads in the other."""
    inputs = probe.inputs()
    for masks in zip(hiding(inputs), hiding(inputs, 1, example=1), strict=True):
        before, after = (probe.attempt(inputs, **mask) for mask in masks)
        if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
            continue
        change = rows(before, after).amax(-1)
        if float(change[[0, 2]].amax()) > REACHED:
            yield Finding(
                "mask-head-order",
                "bug",
                f"a mask that hides key 1 of example 1 alone changes examples 0, 1 and 2 by {_three(change)} of the "
                "output's size",
                "repeat the mask in the order in which batch and heads are merged: repeat_interleave(H, dim=0) for "
                "[B*H], repeat(H, 1, 1) for [H*B]; or broadcast it as [B, 1, Q, K]",
                numbers={f"example {i}": float(x) for i, x in enumerate(change)},
            )
            return


def _three(change: Tensor) -> str:
    a, b, c = (f"{float(x):.2g}" for x in change)
    return f"{a}, {b} and {c}"
