"""Examples of a batch are independent: what one of them holds, and what its mask hides, reaches no other.

One example is changed, and the others must stay bit-identical. An example gives the same alone, and at each place of a
batch. First it is proved that the module is deterministic and that it takes another number of examples: an axis of a
fixed size may be another one than the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.forward_arguments import sides
from headwise.doctor.calling.way import MAP, MAPS, Inputs, tensors_in
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import hiding
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap, moved, rows
from headwise.language import Sentence

FINDINGS = ("batch-mixing", "mask-head-order")

_CHANGED = 1  # the example that is changed
_TRIES = 4  # an index that is shared and rounded does not follow each change


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if not probe.interface.batched:
        raise NotApplicable("it takes no batch, one example at a time")
    inputs = probe.inputs()
    before = probe.answers(inputs)
    if gap(before, probe.output(inputs)) > 0:
        raise NotChecked("two calls with the same input differ")
    more = probe.attempt(probe.inputs(batch=len(before) + 1))
    if not isinstance(more, Tensor) or len(more) != len(before) + 1:
        raise NotChecked(
            Sentence("it does not take {count} examples: its first axis may be another one").format(
                count=len(before) + 1
            )
        )
    other = Probe(patient)  # a long call may leave something behind
    long = other.inputs(length=MAP)
    if isinstance(other.attempt(long), Exception):  # its tables are shorter
        long = inputs
    mixed = _mixed(patient, probe, inputs) or _mixed(patient, other, long)
    if mixed is not None:
        _tokens_meet(other, long)
        yield mixed
        return
    if gap(before, probe.output(inputs, seed=1)) == 0:  # random numbers would differ with the number of examples
        yield from _alone(probe, inputs, before)
    yield from _masks(probe, inputs)


def _tokens_meet(probe: Probe, inputs: Inputs) -> None:
    """Raise NotChecked if the tokens of an example, or the rows or columns of a map, do not meet: what mixes examples
    may then be the attention, and the batch another axis.
    """
    if probe.interface.way.layout == "BMHW":
        return  # as convolutions have it: the batch comes first
    before = probe.answers(inputs)
    middle = inputs.key_length // 2
    change = rows(before, probe.output(moved(inputs, 0, middle, queries=not probe.crosses)))[0] > REACHED
    if len(change) != inputs.query.shape[1]:
        return  # it pools
    grid = change.unflatten(0, sides(len(change))) if probe.interface.way.layout in MAPS else change[None]
    if any(n > 1 and int(grid.any(1 - axis).sum()) == 1 for axis, n in enumerate(grid.shape)):
        raise NotChecked("examples meet, and the tokens of one do not: its first axis may be another than the batch")


def others_change(before: Tensor, after: Tensor, axis: int = 0, changed: int = _CHANGED) -> Tensor:
    """How far each row of the other examples changed, relative to the size of all; `axis` is that of the batch."""
    others = torch.tensor([n for n in range(before.shape[axis]) if n != changed])
    return rows(before.index_select(axis, others), after.index_select(axis, others))


def batch_axis(x: Tensor, batch: int) -> int | None:
    """The axis of the batch among the first two; None where none has its size, or both."""
    axes = [axis for axis, size in enumerate(x.shape[:2]) if size == batch]
    return axes[0] if len(axes) == 1 and x.ndim > 1 else None


def _mixed(patient: Patient, probe: Probe, inputs: Inputs) -> Finding | None:
    """Whether other examples change with one of them, in the output or in what is returned beside it."""
    first = probe.run(inputs)
    for seed in range(99, 99 + _TRIES):
        after = probe.run(moved(inputs, _CHANGED, queries=True, seed=seed))
        change = others_change(first.output, after.output)
        if float(change.amax()) > REACHED:
            reached = int((change > REACHED).sum())
            return _finding(
                Sentence(
                    "after a change of example 1 alone, {reached} of the {of} rows of examples 0 and 2 changed, by up "
                    "to {change:.2g} of the output's size"
                ).format(reached=reached, of=change.numel(), change=float(change.amax())),
                "keep the batch dimension separate: split heads with view(B, N, H, D).transpose(1, 2), and do not "
                "reduce over the batch dimension",
                patient.severity("batch-mixing: in the outputs", "bug"),
            )
        for (_, x), (_, y) in zip(*(tensors_in(each.raw) for each in (first, after)), strict=False):
            axis = batch_axis(x, len(inputs.query))
            beside = 0.0 if axis is None or x.shape != y.shape else float(others_change(x, y, axis).amax())
            if beside > REACHED:
                return _finding(
                    Sentence(
                        "after a change of example 1 alone, what else is returned for examples 0 and 2 changed, by up "
                        "to {change:.2g} of its size"
                    ).format(change=beside),
                    "keep the batch dimension separate: take the softmax over the keys, and do not reduce over the "
                    "batch",
                )
    return None


def _alone(probe: Probe, inputs: Inputs, before: Tensor) -> Iterator[Finding]:
    """An example without the others: the last one, whose place in the batch differs then, unless another argument tells
    the places apart.
    """
    at = 0 if _told_apart(probe, inputs) else len(inputs.query) - 1
    alone = probe.attempt(inputs.each(lambda x: x[at : at + 1]))
    change = gap(before[at : at + 1], alone) if isinstance(alone, Tensor) else 0.0  # laws/sizes.py reports an error
    if change > ROUNDING:
        yield _finding(
            Sentence(
                "example {at} alone gives another output than in a batch of {count}: up to {change:.2g} of the "
                "output's size"
            ).format(at=at, count=len(inputs.query), change=change),
            "do not depend on the number of examples or on their places: make positions for the length, x.shape[1], "
            "not for the batch; squeeze() without a dimension drops a batch of 1",
        )


def _told_apart(probe: Probe, inputs: Inputs) -> bool:
    """Whether the other arguments of forward differ from example to example."""
    batch, heads = len(inputs.query), probe.interface.way.heads
    for value in probe.others(inputs).values():
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(x, Tensor) and x.ndim > 2 and len(x) == batch * heads:
                x = x.unflatten(0, (batch, -1))
            sizes = enumerate(x.shape[:2]) if isinstance(x, Tensor) else ()
            if any(n == batch and not bool((x == x.narrow(axis, 0, 1)).all()) for axis, n in sizes):
                return True
    return False


def _finding(evidence: str, fix: str, severity: Severity = "bug") -> Finding:
    return Finding("batch-mixing", severity, evidence, fix)


def _masks(probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """Masks that act on another example: repeated over heads in one order, merged with batch and heads in the other."""
    for masks in zip(hiding(inputs), hiding(inputs, 1, example=_CHANGED), strict=True):
        before, after = (probe.attempt(inputs, **mask) for mask in masks)
        if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
            continue
        change = rows(before, after).amax(-1)
        if float(others_change(before, after).amax()) > REACHED:
            yield Finding(
                "mask-head-order",
                "bug",
                Sentence(
                    "a mask that hides key 1 of example 1 alone changes examples 0, 1 and 2 by {example_0:.2g}, "
                    "{example_1:.2g} and {example_2:.2g} of the output's size"
                ).format(**{f"example_{i}": x for i, x in enumerate(change.tolist())}),
                "repeat the mask in the order in which batch and heads are merged: repeat_interleave(H, dim=0) for "
                "[B*H], repeat(H, 1, 1) for [H*B]; or broadcast it as [B, 1, Q, K]",
            )
            return
