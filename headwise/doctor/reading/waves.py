"""Whether the cos and sin that a forward computes may be those of RoPE: multiplied onto what is projected.

A table of sinusoids that is added to the tokens, or projected to relative positions as in Transformer-XL, is not RoPE.
One that meets no tokens at all may have been forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.probing.dispatch import Dispatching
from headwise.doctor.reading.marks import tensors_in

_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "convolution", "mkldnn_convolution", "_convolution"}
_TIMES = {"mul", "mul_", "addcmul", "addcmul_"}


def may_be_rope(function: Callable[[], object], tokens: Iterable[Tensor | None]) -> bool:
    """`function` calls a module on these tokens."""
    seen = _Waves([x for x in tokens if x is not None])
    with torch.no_grad(), seen:
        function()
    return seen.onto_projected or (bool(seen.waves) and not seen.elsewhere)


class _Waves(Dispatching):
    """Follows waves, tokens, and what is projected from tokens, by the memory that they lie in."""

    def __init__(self, tokens: Sequence[Tensor]) -> None:
        super().__init__()
        self.waves: set[int] = set()
        self.tokens = {_memory(x) for x in tokens}
        self.projected: set[int] = set()
        self.onto_projected = self.elsewhere = False
        self._kept: list[Tensor] = list(tokens)  # so that no memory is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [_memory(x) for x in tensors_in([list(args), kwargs or {}]) if x.is_floating_point() or x.is_complex()]
        made = [x for x in tensors_in(out) if x.is_floating_point() or x.is_complex()]
        self._kept += made
        places = {_memory(x) for x in made}
        live = [x for x in given if x in self.tokens]
        wave = any(x in self.waves and x not in self.tokens for x in given)
        if wave and name in _PRODUCTS:
            self.elsewhere = True
        elif wave and live:
            if name in _TIMES and any(x in self.projected for x in live):
                self.onto_projected = True
            else:
                self.elsewhere = True
        if live:
            self.tokens |= places
            if name in _PRODUCTS or any(x in self.projected for x in live):
                self.projected |= places
        elif name in ("cos", "sin", "polar") or (wave and name not in _PRODUCTS):
            self.waves |= {_memory(x) for x in made if x.numel()}  # of heads too narrow for it nothing is rotated
        return out


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
