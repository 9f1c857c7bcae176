"""The softmaxes of a forward: the torch operation, and exponentials divided by their sum.

Exponentials that are summed and not divided by that sum are those of a block: code that reads its keys in blocks
divides once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.finding import Where
from headwise.doctor.lines import running_line
from headwise.doctor.reading import marks
from headwise.doctor.reading.events import Ledger, Softmax
from headwise.doctor.reading.marks import Marks


class Softmaxes:
    """Finds them, and records them in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._exponentials: list[tuple[Tensor, Tensor, Where | None]] = []  # the scores, and their sources
        self._shifts: dict[int, Tensor] = {}  # exponential -> what was subtracted from these scores before
        self._blocks: dict[int, Softmax] = {}  # exponential -> the block that was recorded for it

    def operation(self, x: Tensor, dim: int, out: Tensor) -> None:
        found = self.ledger.marks_of(x)
        dims = (dim % x.ndim,) if x.ndim else ()
        self.ledger.softmax(x.detach().clone(), found.source, out, dims, running_line())
        self.ledger.put(out, found.like(found.token.clone(), found.source.clone()))

    def summed(self, args: Sequence[Any], out: Tensor) -> bool:
        """Whether exponentials were summed; if so, their sum is marked."""
        x = args[0]
        exponential = self.ledger.marks_of(x).exponential
        if exponential is None:
            return False
        dims = tuple(d % x.ndim for d in args[1]) if len(args) > 1 and args[1] else tuple(range(x.ndim))
        self._block(exponential, x.detach(), dims)
        found = marks.constant(out.shape)
        found.live, found.sum_of = True, (exponential, dims)
        self.ledger.put(out, found)
        return True

    def single(self, name: str, operands: Sequence[Tensor], parts: Sequence[Marks], out: Tensor, found: Marks) -> None:
        """Follow exponentials through an elementwise operation: its marks `found` get the index of the exponential,
        and a softmax that it completes is recorded.
        """
        if name in ("exp", "exp2") and found.live:
            shift = parts[0].shift
            scores = operands[0] if shift is None else operands[0] + shift
            base = math.log(2) if name == "exp2" else 1.0
            self.ledger.trace.exponentials += 1
            found.exponential = len(self._exponentials)
            if shift is not None:
                self._shifts[found.exponential] = shift * base
            self._exponentials.append((scores.detach() * base, found.source, running_line()))
        elif name in ("div", "mul", "masked_fill", "add", "_to_copy", "clone", "nan_to_num", "where"):
            found.exponential = next(
                (p.exponential for p in parts if p.exponential is not None and p.sum_of is None), None
            )
            sums = [p.sum_of for p in parts if p.sum_of is not None]
            if name == "div" and sums and found.exponential == sums[0][0]:
                self._complete(*sums[0], out)
                found.exponential = None
            elif len(parts) == 1 or name in ("add", "_to_copy", "clone"):
                found.sum_of = sums[0] if sums else None
        if found.exponential is not None and name in ("exp", "exp2", "mul", "div"):
            dim = _adds_up(out)
            if dim is not None:
                self._complete(found.exponential, (dim,), out)
                found.exponential = None

    def _block(self, exponential: int, x: Tensor, dims: tuple[int, ...]) -> None:
        """Record the exponentials x, which may be masked, of scores from which a running maximum was subtracted."""
        if exponential in self._blocks:
            return
        _, source, where = self._exponentials[exponential]
        shift = self._shifts.get(exponential)
        scores = x.double().log() + (0.0 if shift is None else shift.double())
        weights = (x / x.sum(dims, keepdim=True)).nan_to_num(0.0)
        recorded = self.ledger.softmax(scores, source, weights, dims, where, by_hand=True, block=True)
        self._blocks[exponential] = recorded

    def _complete(self, exponential: int, dims: tuple[int, ...], out: Tensor) -> None:
        block = self._blocks.pop(exponential, None)
        if block is not None:
            self.ledger.trace.blocks[:] = [x for x in self.ledger.trace.blocks if x is not block]
        scores, source, where = self._exponentials[exponential]
        self.ledger.softmax(scores, source, out, dims, where, by_hand=True)


def _adds_up(x: Tensor) -> int | None:
    """The dim along which numbers sum to 1 everywhere, like weights; None if there is none."""
    tolerance = 1e-4 if x.dtype in (torch.float32, torch.float64) else 1e-2
    sums = ((dim, x.detach().double().sum(dim)) for dim in range(x.ndim) if x.shape[dim] > 1)
    return next((dim for dim, total in sums if bool(((total - 1).abs() < tolerance).all())), None)
