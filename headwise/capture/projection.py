"""Follows the output of an attention until its output projection W_O, which norm-based weights need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from headwise.capture.operations import ARRANGE

_MOVE = ("transpose", "permute", "swapaxes", "movedim")


@dataclass(frozen=True)
class _Output:
    heads: int
    width: int  # E
    merged: bool  # whether the heads are already side by side: [..., H · E]
    tell: Callable[[Tensor], object]


class Outputs:
    """The outputs of attention that have not been multiplied by an output projection yet."""

    def __init__(self) -> None:
        self._of = WeakTensorKeyDictionary()  # tensor -> _Output
        self.known = self._of.data  # every torch call asks whether it is empty: a plain dictionary answers at once

    def put(self, out: Tensor, heads: int, tell: Callable[[Tensor], object]) -> None:
        """Follow `out`, whose last dimension is E, until W_O multiplies it; then call `tell(W_O [H, E, M])`."""
        self._of[out] = _Output(heads, out.shape[-1], False, tell)

    def step(self, name: str, args: Sequence[Any], out: Any) -> None:
        """If an attention output is among the arguments, follow it to the result, or report the W_O multiplying it."""
        at = next((i for i, x in enumerate(args) if isinstance(x, Tensor) and x in self._of), None)
        if at is None or not isinstance(out, Tensor):
            return
        x: Tensor = args[at]
        found: _Output = self._of[x]
        if name in ARRANGE or name in _MOVE:
            arranged = _arranged(found, x, out)
            if arranged is not None:
                self._of[out] = arranged
        elif found.merged or found.heads == 1:
            weight = _weight(name, args, at, found.heads * found.width)
            if weight is not None:
                self._of.pop(x)
                found.tell(weight.detach().unflatten(0, (found.heads, found.width)).clone())


def _arranged(found: _Output, x: Tensor, out: Tensor) -> _Output | None:
    both = found.heads * found.width
    if found.merged:
        return found if out.shape[-1] == both else None
    if out.shape[-1] == found.width and out.ndim >= 2 and found.heads > 1:
        return found
    # The dimension before E is the heads, or batch and heads in one: merging the two puts the heads side by side.
    if out.shape[-1] == both and x.shape[-1] == found.width and x.shape[-2] % found.heads == 0:
        return replace(found, merged=True)
    return None


def _weight(name: str, args: Sequence[Any], at: int, rows: int) -> Tensor | None:
    """Return the weight [H · E, M] that multiplies an attention output; None if the operation is no projection."""
    if name == "linear" and at == 0:
        weight = args[1].mT
    elif (name == "addmm" and at == 1) or (name in ("matmul", "__matmul__") and at == 0):
        weight = args[at + 1]
    else:
        return None
    return weight if isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[0] == rows else None
