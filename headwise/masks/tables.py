"""Tables that masks look up by index: the same table answers ints, NumPy arrays and tensors on any device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError
from headwise.masks.mask import Allowed, Index


def look_up(table: Tensor, *index: Index) -> Allowed:
    """`table[index]`, as a Python scalar for ints, an array for NumPy arrays, a tensor for tensors."""
    if not isinstance(table, Tensor):  # another framework's, which knows its own indexing
        return table[index]
    if all(isinstance(i, int) for i in index):
        return table[index].item()
    if any(isinstance(i, np.ndarray) for i in index):
        return table.cpu().numpy()[index]
    device = next(i.device for i in index if isinstance(i, Tensor))
    return table.to(device)[index]


def counts(flags: Tensor) -> Tensor:
    """Running counts along the last axis, with a leading 0: [lo, hi) holds counts[hi] - counts[lo] times True."""
    return torch.nn.functional.pad(flags.cumsum(-1, dtype=torch.int32), (1, 0)).cpu()


def is_seen(condition: Tensor) -> bool:
    """Whether a check of a tensor's contents fails somewhere; False in compiled code, which cannot look."""
    return not torch.compiler.is_compiling() and bool(condition.any())


def integer_table(name: str, values: object, ranks: tuple[int, ...]) -> Tensor:
    """`values` as an int64 tensor of one of the ranks, or an error that names the argument."""
    table = torch.as_tensor(values)
    if table.dtype == torch.bool or table.is_floating_point() or table.is_complex():
        raise DtypeError(f"{name} must hold integers. Received: {table.dtype}")
    if table.ndim not in ranks:
        raise MaskError(f"{name} must have rank {' or '.join(map(str, ranks))}. Received: shape {list(table.shape)}")
    return table.long()


def index_at(name: str, value: int, *, minimum: int = 0) -> int:
    """`value` as an int that is at least `minimum`, or an error that names the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise DtypeError(f"{name} must be an int. Received: {value!r}")
    if value < minimum:
        raise MaskError(f"{name} must be at least {minimum}. Received: {value}")
    return value
