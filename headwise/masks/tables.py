"""Functions for the tables (tensors) in which masks look up values by index, and checks of the arguments of masks."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError, brief
from headwise.masks.memo import converted
from headwise.tracing import is_traced

# Lengths stay below this, so that positions and their distances fit into int32; anything farther away is out of reach.
FAR = 2**30

Number = TypeVar("Number", int, "int | None")

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def look_up(table: Tensor, *index: Any) -> Any:
    """Return `table[index]`; a dimension of size 1 has the same value for every index.

    The kind of index decides the kind of result: a Python scalar for ints, an array for NumPy arrays, a tensor for
    tensors, on their device.
    """
    index = tuple(i * 0 if size == 1 else i for i, size in zip(index, table.shape, strict=True))
    if not isinstance(table, Tensor):  # another framework's table, with its own indexing
        return table[index]
    if all(isinstance(i, int) for i in index):
        return table[index].item()
    if any(isinstance(i, np.ndarray) for i in index):
        return table.cpu().numpy()[index]
    device = next(i.device for i in index if isinstance(i, Tensor))
    return table.to(device)[index]


def counts(flags: Tensor) -> Tensor:
    """Count True before each position of the last axis: [lo, hi) contains True counts[hi] - counts[lo] times."""
    return torch.nn.functional.pad(flags.cumsum(-1, dtype=torch.int32), (1, 0)).cpu()


def has_true(condition: Tensor) -> bool:
    """Whether a condition is True somewhere; False if values cannot be read, because torch is tracing."""
    return not is_traced() and bool(condition.any())


def as_tensor(name: str, values: object) -> Tensor:
    """Return numbers, a sequence, an array or a tensor as a tensor; an error names the argument `name`.

    A tensor stays on its device; anything else goes to torch's default device, as with torch.tensor. An empty sequence
    becomes an integer tensor.
    """
    if isinstance(values, Tensor):
        return values
    try:
        found = torch.as_tensor(values)
        return found if found.numel() or isinstance(values, np.ndarray) else found.long()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise DtypeError(f"{name}: expected integers below 2**63. Received: {brief(values)} ({error})") from None


def integer_table(name: str, values: object, ranks: tuple[int, ...], *, least: int | None = None) -> Tensor:
    """Return `values` as an int64 tensor of one of `ranks`, no number below `least`; an error names the argument."""
    table = as_tensor(name, values)
    if table.dtype not in _INTEGERS:
        raise DtypeError(f"{name}: expected integers. Received: {table.dtype}")
    if table.ndim not in ranks:
        raise MaskError(f"{name}: expected rank {' or '.join(map(str, ranks))}. Received: shape {list(table.shape)}")
    if least is not None and has_true(table < least):
        raise MaskError(f"{name}: expected integers of at least {least}. Received: {brief(table.tolist())}")
    return converted(table, torch.int64)


def integer(
    name: str, value: Number, *, least: float = -math.inf, most: float = math.inf, optional: bool = False
) -> Number:
    """Return `value` if it is an int from `least` to `most` (or None, if `optional`); an error names the argument."""
    received = f"Received: {name.split()[-1]}={value!r}"
    if value is None and optional:
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise DtypeError(f"{name} must be an int{' or None' if optional else ''}. {received}")
    if value < least:
        raise MaskError(f"{name} must be at least {least}. {received}")
    if value > most:
        raise MaskError(f"{name} must be at most {most}. {received}")
    return value


def check_at_most(name: str, values: Tensor, k_len: int) -> None:
    """Raise MaskError if any of `values`, which are numbers of keys, is larger than `k_len`."""
    if has_true(values > k_len):
        raise MaskError(f"{name} must not exceed the {k_len} keys. Received: {name.split()[-1]}={values.tolist()}")


def of_rank_4(name: str, cells: object, hint: str = "", *, floats: bool = False) -> Tensor:
    """Return a bool (or float) tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K] as rank 4; errors name the argument."""
    if not isinstance(cells, Tensor) or not (cells.is_floating_point() if floats else cells.dtype == torch.bool):
        expected = "a float tensor" if floats else "a bool tensor, True = may attend"
        received = cells.dtype if isinstance(cells, Tensor) else type(cells).__name__
        raise DtypeError(f"{name}: expected {expected}. Received: {received}{hint}")
    if cells.ndim not in (2, 3, 4):
        raise MaskError(f"{name}: expected [Q, K], [H, Q, K] or [B, H, Q, K]. Received: {list(cells.shape)}")
    return cells[(None,) * (4 - cells.ndim)]
