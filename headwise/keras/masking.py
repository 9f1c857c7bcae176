"""Masks for Keras tensors: evaluates the masks of `headwise.masks` with index tensors of the backend.

The tables in a mask of `headwise.masks` (such as lengths) are torch tensors; here they become tensors of the backend
(`Table`). Tensors that are passed as masks, and the padding masks of Keras, become mask objects too, so that `cells`
can evaluate all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from keras import ops

from headwise.errors import DtypeError, MaskError, ShapeError
from headwise.masks import Mask
from headwise.masks.band import Band
from headwise.masks.bits import Bits
from headwise.masks.cellwise import Dense, Predicate
from headwise.masks.mask import And, Combined, Not, Or
from headwise.masks.padding import PaddingKeys
from headwise.shapes import check_fits

Tensor = Any  # a tensor of the backend (TensorFlow, JAX or PyTorch)
Sizes = tuple[int | None, int | None, int | None, int | None]  # B, H, Q, K; None = unknown before the call


class Table:
    """A tensor of the backend that is indexed like a torch tensor: `table[b, k]` with index tensors that broadcast."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.shape = values.shape

    def __getitem__(self, index: tuple[Tensor, ...]) -> Tensor:
        flat = index[0]
        for size, i in zip(ops.shape(self.values)[1:], index[1:], strict=True):
            flat = flat * size + i
        return ops.take(ops.reshape(self.values, (-1,)), flat)

    def __len__(self) -> int:
        return int(self.shape[0])

    def tolist(self) -> list[Any]:
        found: list[Any] = ops.convert_to_numpy(self.values).tolist()
        return found


def resolve(
    given: Sequence[Mask | Tensor | None], padding: Tensor | None, sizes: Sizes, *, same: bool = False
) -> Mask | None:
    """Combine masks and padding to one mask for [B, H, Q, K]; None if there are none.

    It allows a pair of query and key if all masks allow the pair and the key is a real token.

    Args:
        given: masks of `headwise.masks`, or tensors [Q, K], [B, Q, K] or [B, H, Q, K] (B, H and Q may be 1), True or
            1 = may attend; None = no mask.
        padding: [B, K], True or 1 = a real token.
        sizes: (B, H, Q, K); None = unknown before the call.
        same: whether queries and keys have the same positions, so that Q == K even if both are unknown.
    """
    parts: list[Mask] = []
    for mask in given:
        if isinstance(mask, Mask):
            for dim, made_for, size in zip("BH", (mask.batch, mask.heads), sizes[:2], strict=True):
                if size is not None:
                    check_fits("attention_mask", dim, made_for, size)
            mask = _aligned(mask, *sizes[2:], same=same)
            parts += mask.conjuncts
        elif mask is not None:
            parts.append(_make_dense(mask, sizes))
    if padding is not None:
        parts.append(PaddingKeys(Table(_as_bool("padding", padding, sizes, "BK"))))  # type: ignore[arg-type]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _aligned(mask: Mask, q_len: int | None, k_len: int | None, *, same: bool) -> Mask:
    """Align a mask: the last query is at the position of the last key. MaskError if it needs unknown lengths."""
    if q_len is not None and k_len is not None:
        return mask.aligned(q_len, k_len)
    if same or _is_fixed(mask):
        return mask
    raise MaskError(
        f"attention_mask: {mask!r} aligns the last query with the last key, so it needs both lengths. Received: "
        f"Q={q_len}, K={k_len}. Use inputs of fixed length, or a mask with an offset"
    )


def _is_fixed(mask: Mask) -> bool:
    """Return whether a mask is the same for all lengths, so that it need not be aligned."""
    if isinstance(mask, Combined):
        return all(_is_fixed(part) for part in mask.parts)
    return mask.key_only or getattr(mask, "offset", None) is not None


def _make_dense(mask: Tensor, sizes: Sizes) -> Mask:
    rank = len(mask.shape)
    if rank not in (2, 3, 4):
        raise ShapeError(
            f"attention_mask: expected [Q, K], [B, Q, K] or [B, H, Q, K]. Received: attention_mask.shape={mask.shape}"
        )
    dims = {2: "QK", 3: "BQK", 4: "BHQK"}[rank]
    allowed = _as_bool("attention_mask", mask, sizes, dims)
    allowed = allowed[None, None] if rank == 2 else allowed[:, None] if rank == 3 else allowed
    return Dense(Table(allowed))  # type: ignore[arg-type]


def _as_bool(name: str, mask: Tensor, sizes: Sizes, dims: str) -> Tensor:
    """Convert a mask tensor to bool, and check that it has the dimensions `dims` of the call; B, H and Q may be 1."""
    mask = ops.convert_to_tensor(mask)
    dtype = str(mask.dtype)
    if "float" in dtype or "complex" in dtype:
        raise DtypeError(
            f"{name}: expected bool, or whole numbers 1 = may attend and 0 = may not. Received: dtype={mask.dtype}. "
            "A tensor that is added to the scores is a bias"
        )
    known = dict(zip("BHQK", sizes, strict=True))
    expected = [known[dim] for dim in dims]
    wrong = len(mask.shape) != len(dims) or any(
        size is not None and want is not None and size != want and not (size == 1 and dim != "K")
        for dim, size, want in zip(dims, mask.shape, expected, strict=False)
    )
    if wrong:
        hint = {
            "QK": ". Padding [B, K] goes in value_mask=, or as mask[:, None, :]",
            "BQK": ". A mask for each head is [1, H, Q, K]",
        }.get(dims, "")
        raise ShapeError(
            f"{name}: expected [{', '.join(dims)}] = {expected}. Received: {name}.shape={tuple(mask.shape)}{hint}"
        )
    return ops.cast(mask, "bool")


# --- Evaluation -------------------------------------------------------------------------------------------------------


def cells(mask: Mask, rows: Tensor, cols: Tensor, *, whole: bool = False) -> Tensor:
    """Evaluate a mask for some queries (`rows` [r]) and keys (`cols` [c]): bool [B|1, H|1, r, c], True = may attend.

    For n blocks, with rows [n, r] and cols [n, c], the result is bool [B|1, H|1, n, r, c].

    `whole`: whether `rows` and `cols` are all rows and columns in order, so that no lookup is needed.
    """
    if isinstance(mask, (And, Or)):
        join = operator.and_ if isinstance(mask, And) else operator.or_
        return functools.reduce(join, (cells(part, rows, cols, whole=whole) for part in mask.parts))
    if isinstance(mask, Not):
        return ops.logical_not(cells(mask.part, rows, cols, whole=whole))
    given = find_tensor(mask)
    if given is not None:
        return given if whole else picked(given, rows, cols)
    rank = len(rows.shape) + 1
    q, k = ops.expand_dims(rows, -1), ops.expand_dims(cols, -2)
    mask = with_tables(mask)
    b, h = (
        ops.reshape(ops.arange(size or 1, dtype="int32"), (-1, *[1] * behind))
        for size, behind in ((mask.batch, rank + 1), (mask.heads, rank))
    )
    allowed = mask.allows(b, h, q, k)
    missing = rank + 2 - len(allowed.shape)
    return ops.reshape(allowed, (1,) * missing + tuple(ops.shape(allowed))) if missing else allowed


def find_tensor(mask: Mask) -> Tensor | None:
    """Return the tensor that was passed as this mask, bool [B|1, H|1, Q|1, K]; None for a mask of `headwise.masks`."""
    table: Any = mask.allowed if isinstance(mask, Dense) else mask.real if isinstance(mask, PaddingKeys) else None
    if not isinstance(table, Table):
        return None
    return table.values[:, None, None] if isinstance(mask, PaddingKeys) else table.values


def picked(given: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """Look up a tensor [B|1, H|1, Q|1, K|1] at `rows` and `cols`; the result has the shape of the result of `cells`."""
    if given.shape[3] == 1:
        cols = ops.zeros_like(cols)
    if given.shape[2] == 1:
        return ops.expand_dims(ops.take(given[:, :, 0], cols, axis=2), -2)
    if len(rows.shape) == 1:
        return ops.take(ops.take(given, rows, axis=2), cols, axis=3)
    b, h, q_len, k_len = ops.shape(given)
    flat = ops.clip(ops.expand_dims(rows, -1), 0, q_len - 1) * k_len + ops.expand_dims(cols, -2)
    return ops.take(ops.reshape(given, (b, h, -1)), flat, axis=2)


def with_tables(mask: Mask) -> Mask:
    """Convert the tables of a mask from torch tensors to tensors of the backend."""
    if isinstance(mask, (Bits, Predicate)):
        lengths = mask.natural_lengths()
        if isinstance(mask, Bits) and lengths is not None:  # the bits are unpacked: not every backend can shift bits
            return with_tables(Dense(mask.to_bool(*lengths)))
        return mask
    values = {field.name: getattr(mask, field.name) for field in dataclasses.fields(mask)}
    moved = {name: Table(_convert(value)) for name, value in values.items() if isinstance(value, torch.Tensor)}
    return dataclasses.replace(mask, **moved) if moved else mask


def _convert(table: torch.Tensor) -> Tensor:
    values = table.detach().cpu().numpy()
    if values.dtype == np.int64:  # JAX has no int64, and a length does not need it
        if values.size and values.max() > np.iinfo(np.int32).max:  # document ids, which are only compared
            values = np.where(values < 0, -1, np.unique(values, return_inverse=True)[1].reshape(values.shape))
        values = values.clip(min=-1).astype(np.int32)
    return ops.convert_to_tensor(values)


def used_keys(mask: Mask, q_len: int | None, k_len: int | None) -> Tensor | None:
    """Find the keys that some query may attend to: bool [B|1, H|1, K]; None = all keys, or unknown.

    The result is exact for one mask or one tensor. If several masks are combined, a key counts as used if each mask
    alone lets some query attend to it.
    """
    found: list[Tensor] = []
    for part in mask.conjuncts:
        given = find_tensor(part)
        if given is not None:
            found.append(ops.any(given, axis=2))
        elif q_len is not None and k_len is not None and not sees_all(part, q_len, k_len) and not has_tables(part):
            used = part.used_keys(q_len, k_len)
            if used is not None:
                found.append(ops.convert_to_tensor(used.numpy()))
    return functools.reduce(ops.logical_and, found) if found else None


def has_tables(mask: Mask) -> bool:
    """Return whether any part of a mask was passed as a tensor of the backend."""
    if isinstance(mask, Combined):
        return any(has_tables(part) for part in mask.parts)
    return any(isinstance(getattr(mask, field.name), Table) for field in dataclasses.fields(mask))


def reach(mask: Mask | None) -> tuple[float, float]:
    """Return (lowest, highest) k - q, key minus query position, that the mask may allow; infinite if unknown."""
    low, high = -math.inf, math.inf
    for part in () if mask is None else mask.conjuncts:
        band = part.band()
        if band is not None:
            low, high = max(low, band[0]), min(high, band[1])
    return low, high


def sees_all(mask: Mask, q_len: int | None, k_len: int | None) -> bool:
    """Return whether it is certain that each key is allowed for some query.

    It is certain for a band (a range of k - q) without a lower limit, with which the last query sees the last key.
    """
    if not isinstance(mask, Band):
        return False
    low, high = mask.band() or (0, 0)
    return low == -math.inf and (high >= 0 if q_len is None or k_len is None else high >= k_len - q_len)


def never_empty(mask: Mask | None, q_len: int | None, k_len: int | None) -> bool:
    """Return whether it is certain that each query may attend to some key.

    It is certain for a band (a range of k - q) that includes the query's own position, if this key exists.
    """
    if not isinstance(mask, Band):
        return False
    low, high = mask.band() or (1, 0)
    return low <= 0 <= high and (q_len is None or k_len is None or q_len <= k_len)
