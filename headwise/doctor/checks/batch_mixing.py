"""Whether examples of a batch influence one another: by their tokens, or by their masks.

One example is changed; what comes out of the others must stay bit by bit what it was. An example alone must give what
it gives among others, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, each, gap, length_of_keys, moved, rows

FINDINGS = ("batch-mixing", "mask-head-order")
SOURCES = ("lsdefine/attention-is-all-you-need-keras #36",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if not probe.interface.batched:
        raise NotApplicable("it takes one example at a time")
    inputs = probe.inputs()
    before = probe.answers(inputs)
    others = [0, 2]

    change = rows(before, probe.output(moved(inputs, 1, queries=True)))[others]
    if float(change.amax()) > REACHED:
        reached = int((change > REACHED).sum())
        yield Finding(
            "batch-mixing",
            "bug",
            f"other numbers in example 1 alone changed {reached} of the {change.numel()} rows of examples 0 and 2, "
            f"by up to {float(change.amax()):.2g} of the output's size",
            "keep the batch dimension apart: split heads with view(B, N, H, D).transpose(1, 2), and reduce over no "
            "dimension "
            "of the batch",
            numbers={"change": float(change.amax()), "rows": reached, "of": change.numel()},
        )
        return

    alone = probe.attempt(each(inputs, lambda x: x[:1]))
    difference = gap(before[:1], alone) if isinstance(alone, Tensor) else 0.0  # that it fails is for the check of sizes
    if difference > ROUNDING:
        yield Finding(
            "batch-mixing",
            "bug",
            f"example 0 alone gives another output than in a batch of 3: up to {difference:.2g} of the output's size",
            "let nothing depend on how many examples there are; squeeze() without a dimension drops a batch of 1",
            numbers={"change": difference},
        )
    yield from _masks(probe)


def _masks(probe: Probe) -> Iterator[Finding]:
    """Masks of one example that act on another: repeated over heads in one order, folded with them in the other."""
    inputs = probe.inputs()
    keys = length_of_keys(inputs)
    full = torch.ones(3, inputs.query.shape[1], keys, dtype=torch.bool)
    hidden = full.clone()
    hidden[1, :, 1] = False
    ways = {"allowed": (full, hidden), "padding": (full[:, 0], hidden[:, 0])}
    for word, (nothing, one) in ways.items():
        before, after = (_masked(probe, inputs, word, mask) for mask in (nothing, one))
        if not (isinstance(before, Tensor) and isinstance(after, Tensor)):
            continue
        change = rows(before, after).amax(-1)
        if float(change[[0, 2]].amax()) > REACHED:
            yield Finding(
                "mask-head-order",
                "bug",
                f"a mask that hides key 1 in example 1 alone moves examples 0, 1 and 2 by {_three(change)} of the "
                "output's size",
                "repeat the mask in the order in which batch and heads are folded: repeat_interleave(H, dim=0) for "
                "[B*H], "
                "repeat(H, 1, 1) for [H*B]; or broadcast it as [B, 1, Q, K]",
                sources=SOURCES,
                numbers={f"example {i}": float(x) for i, x in enumerate(change)},
            )
            return


def _masked(probe: Probe, inputs: Inputs, word: str, mask: Tensor) -> Tensor | Exception:
    return probe.attempt(inputs, allowed=mask) if word == "allowed" else probe.attempt(inputs, padding=mask)


def _three(change: Tensor) -> str:
    a, b, c = (f"{float(x):.2g}" for x in change)
    return f"{a}, {b} and {c}"
