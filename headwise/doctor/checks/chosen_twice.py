"""A decoder that points at its inputs, each of them once: a tour in which no node stands twice.

Visited nodes must have no weight. Where their logits are multiplied by 0, or clipped after the mask, they only become
less likely.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import Probe, scaled

FINDINGS = ("chosen-twice",)

_ONCE = re.compile(
    r"\b(visited|visits?|tours?|permutation)\b|\bnone of them twice\b|\bexactly once\b|\boccurs once\b", re.IGNORECASE
)
_FACTORS, _SEEDS = (1.0, 30.0), 4


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if not _ONCE.search(text_of(probe.module)):
        raise NotApplicable("nothing says that it chooses each input once")
    inputs = probe.inputs()
    seen = False
    for train, factor, seed in ((t, f, s) for t in (False, True) for f in _FACTORS for s in range(_SEEDS)):
        probe.module.train(train)
        try:
            raw = probe.run(scaled(inputs, factor), seed=seed).raw
        except Exception:  # it does not run in train mode, or with large numbers
            continue
        finally:
            probe.module.eval()
        for choice in tree_leaves(raw):
            if not _points(choice, inputs.query.shape[:2]):
                continue
            seen = True
            again = [x.unique(return_counts=True) for x in choice]
            twice = next(((int(n[c.argmax()]), int(c.max())) for n, c in again if int(c.max()) > 1), None)
            if twice is not None:
                node, times = twice
                yield Finding(
                    "chosen-twice",
                    "bug",
                    f"in {'train' if train else 'eval'} mode it chooses input {node} {times} times in "
                    f"{choice.shape[1]} steps, and its text says that each is chosen once",
                    "mask what was chosen with -inf, as the last thing before the softmax: after the clip, and not by "
                    "a factor",
                    patient.where,
                    numbers={"times": float(times)},
                )
                return
    if not seen:
        raise NotChecked("it returns no choices [B, steps] of its inputs")


def _points(x: Any, shape: torch.Size) -> TypeGuard[Tensor]:
    """Whether a tensor holds choices [B, steps] among the tokens of an input [B, N]."""
    batch, length = shape
    if not isinstance(x, Tensor) or x.dtype not in (torch.int64, torch.int32) or x.ndim != 2 or x.shape[0] != batch:
        return False
    return 2 <= x.shape[1] <= length and bool(((x >= 0) & (x < length)).all())
