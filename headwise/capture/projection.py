"""The way of an attention's output to its output projection, W_O: what norm-based weights need."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_ARRANGE = frozenset(
    (
        "transpose",
        "permute",
        "contiguous",
        "view",
        "reshape",
        "flatten",
        "to",
        "swapaxes",
        "movedim",
        "type_as",
        "clone",
    )
)
_PROJECT = ("linear", "addmm", "matmul", "__matmul__")


@dataclass(frozen=True)
class _Output:
    heads: int
    width: int  # E
    merged: bool  # whether the heads stand side by side already: [..., H · E]
    tell: Callable[[Tensor], None]


class Outputs:
    """The outputs of attention that have not met their projection yet."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[Tensor], _Output]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def put(self, out: Tensor, heads: int, tell: Callable[[Tensor], None]) -> None:
        """Follow `out`, whose last dimension is E, until it is projected; then call `tell(W_O [H, E, M])`."""
        self._put(out, _Output(heads, out.shape[-1], False, tell))

    def step(self, name: str, args: Sequence[Any], out: Any) -> None:
        """Note what operation `name` made of the outputs among its arguments."""
        at = next((i for i, x in enumerate(args) if self._get(x) is not None), None)
        if at is None or not isinstance(out, Tensor):
            return
        x: Tensor = args[at]
        found = self._get(x)
        assert found is not None
        if name in _ARRANGE:
            self._put(out, self._arranged(found, x, out))
        elif found.merged or found.heads == 1:
            weight = _weight(name, args, at, found.heads * found.width)
            if weight is not None:
                self._of.pop(id(x), None)
                found.tell(weight.detach().unflatten(0, (found.heads, found.width)).clone())

    def _arranged(self, found: _Output, x: Tensor, out: Tensor) -> _Output | None:
        both = found.heads * found.width
        if found.merged:
            return found if out.shape[-1] == both else None
        if out.shape[-1] == found.width and out.ndim >= 2 and found.heads > 1:
            return found
        # The dimension before E is the heads, or batch and heads in one: merging them puts the heads side by side.
        if out.shape[-1] == both and x.shape[-1] == found.width and x.shape[-2] % found.heads == 0:
            return _Output(found.heads, found.width, True, found.tell)
        return None

    def _get(self, x: Any) -> _Output | None:
        found = self._of.get(id(x))
        return found[1] if found is not None and found[0]() is x else None

    def _put(self, x: Tensor, output: _Output | None) -> None:
        of, key = self._of, id(x)
        if output is not None:
            of[key] = (weakref.ref(x, lambda _: of.pop(key, None)), output)


def _weight(name: str, args: Sequence[Any], at: int, rows: int) -> Tensor | None:
    """The weight [H · E, M] that the output is multiplied with."""
    if name == "linear" and at == 0:
        weight = args[1].mT
    elif (name == "addmm" and at == 1) or (name in ("matmul", "__matmul__") and at == 0):
        weight = args[at + 1]
    else:
        return None
    return weight if isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[0] == rows else None
