"""RoPE's frequencies in a module: from buffers of frequencies or of sines, or from its base."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

BASES = ("base", "theta", "rope_theta", "rope_base", "rotary_base", "rotary_emb_base")


def rope_bases(module: nn.Module) -> tuple[float, ...]:
    """The bases in attributes, and that of the paper."""
    found = [10000.0]
    for part in module.modules():
        for name in BASES:
            value = vars(part).get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 1:
                found.append(float(value))
    return tuple(dict.fromkeys(found))[:3]


def rope_tables(module: nn.Module, handed: Iterable[Tensor] = ()) -> tuple[Tensor, ...]:
    """Angles per position, each a table [pairs] in float64, from the module's buffers or the tensors passed to it."""
    found: list[Tensor] = []
    for table in _candidates(module, handed):
        same = (other for other in found if other.shape == table.shape and torch.allclose(other, table, rtol=1e-5))
        if next(same, None) is None:
            found.append(table)
    return tuple(found[:4])


def _candidates(module: nn.Module, handed: Iterable[Tensor]) -> Iterator[Tensor]:
    tensors: list[Tensor] = [buffer.detach() for buffer in (*module.buffers(), *handed)]
    for part in module.modules():  # also tensors that are not registered
        tensors += [x.detach() for x in vars(part).values() if isinstance(x, Tensor)]
    for tensor in tensors:
        table = _table(tensor)
        if table is not None:
            yield table


def _table(tensor: Tensor) -> Tensor | None:
    """The angles per position in a buffer: stored as they are, as sines by position, or as complex numbers."""
    if tensor.is_complex():
        rows = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim > 1 else tensor[None]
        return _falling(rows[1].angle().double()) if len(rows) > 1 else None
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return None
    squeezed = tensor.double().squeeze()
    if squeezed.ndim == 1:
        return _falling(squeezed)
    if squeezed.ndim != 2 or len(squeezed) < 2 or bool(squeezed[0].abs().max() > 0):
        return None
    sines = squeezed[1]
    if bool((sines.abs() > math.sin(1) + 1e-6).any()):  # angles by position, not their sines
        return _falling(_once(sines))
    angles = sines.asin()
    # A table of angles by position begins like one of sines; the first angle tells them apart: 1, or sin 1.
    return _falling(_once(angles))


def _once(angles: Tensor) -> Tensor:
    """Without the repetition of every angle for the second column of its pair."""
    half = len(angles) // 2
    if len(angles) % 2 == 0 and half:
        if torch.equal(angles[:half], angles[half:]):
            return angles[:half]
        if torch.equal(angles[0::2], angles[1::2]):
            return angles[0::2]
    return angles


def _falling(table: Tensor) -> Tensor | None:
    """The table, if it could be one of frequencies: decreasing from about 1, above 0."""
    if table.numel() == 0 or abs(float(table[0]) - 1.0) > 1e-3 or bool((table <= 0).any()):
        return None
    return table if bool((table[1:] < table[:-1]).all()) else None
