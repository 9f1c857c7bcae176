"""Finds W_O by trial: the weights by which the outputs of heads are multiplied before they are summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.experiments.linear import close, coarsest, in_rows
from headwise.experiments.observing import Computed, Event, Observed


def output_projection(observed: Observed, computed: Computed) -> tuple[Tensor, Tensor, Tensor, str] | None:
    """Find W_O of a layer: a parameter whose product with the outputs of the heads is the output of a module.

    Returns (W_O [H, E, M], b_O [M], the module's output, the name of the weight); None if it is not found.
    """
    batch, heads, length, width = computed.out.shape
    if batch * length < 2:
        raise ArgumentError(f"expected at least 2 tokens at {computed.site}. Received: {batch * length}")
    flat = computed.out.transpose(1, 2).reshape(batch * length, heads * width).double()
    around: list[Event] = []
    for events in observed.around(computed.site):
        around += events
        for event in events:
            for name, p in event.parameters.items():
                for weight in _outward(p, heads, width):
                    z = flat @ weight.double()
                    biases = [b.double() for b in event.parameters.values() if b.shape == z.shape[1:]]
                    y, bias = _given(around, z, biases, batch, coarsest(p, computed.out))
                    if y is not None:
                        return weight.unflatten(0, (heads, width)), bias, y, f"{event.name}.{name}".lstrip(".")
    return None


def _outward(p: Tensor, heads: int, width: int) -> list[Tensor]:
    """Return the parameter in each form [H · E, M] in which it could be W_O: of a Linear, of a Conv1D, or [H, E, M]."""
    if p.ndim == 3:
        return [p.flatten(0, 1)] if p.shape[:2] == (heads, width) else []
    whole = heads * width
    return [x for x in (p.mT, p) if x.shape[0] == whole] if p.ndim == 2 else []


def _given(
    events: Sequence[Event], z: Tensor, biases: Sequence[Tensor], batch: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor]:
    """Find a module's output that equals `z` [n, M] plus one of the biases or 0: (output or None, this bias [M])."""
    none = torch.zeros_like(z[0])
    for y in (y for event in events for y in event.outputs if y.shape[-1:] == z.shape[1:] and bool(z.any())):
        for rows in in_rows(y, len(z), batch):
            for bias in [*biases, none]:
                if close(rows.double(), z + bias, rows, dtype):
                    return y, bias
    return None, none
