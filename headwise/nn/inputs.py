"""Checks and preparation of the inputs of attention modules: shapes, masks, real tokens, positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from headwise import masks
from headwise.call import fit_mask
from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.masks import Mask
from headwise.masks.cellwise import as_mask
from headwise.nn.cache import Cache
from headwise.parallel import context as parallel
from headwise.tracing import is_traced


def check_input(name: str, x: Tensor, width: int, *, batch: int | None = None, linear: nn.Module | None = None) -> None:
    """Raise an error unless `x` is a tensor [B, S, width], with B = `batch` and the dtype of `linear`.

    `batch` and `linear` are checked only if they are not None. Only the dtype of a plain `nn.Linear` is compared: the
    weights of another class may be integers, or it may convert its input.
    """
    if not isinstance(x, Tensor):
        hint = ". Pass a mask by its name: mask=" if isinstance(x, Mask) else ""
        raise DtypeError(f"{name}: expected a tensor [B, S, {width}]. Received: {name}={type(x).__name__}{hint}")
    if x.ndim != 3 or x.shape[-1] != width:
        hint = ". One sequence is a batch of one: x[None]" if x.ndim == 2 and x.shape[-1] == width else ""
        raise ShapeError(f"{name}: expected [B, S, {width}]. Received: {name}={list(x.shape)}{hint}")
    if batch is not None and x.shape[0] != batch:
        raise ShapeError(f"{name}: expected the batch size of query, B={batch}. Received: {name}={list(x.shape)}")
    if type(linear) is nn.Linear and x.dtype != linear.weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise DtypeError(
            f"{name}: expected the dtype of the weights, {linear.weight.dtype}. Received: {name}={x.dtype}. Convert "
            "one of them with .to(dtype), or use torch.autocast"
        )


def check_alone(key: object, value: object) -> None:
    """Raise ArgumentError if a key or a value was passed to an encoder, which reads one sequence only."""
    name, given = ("key", key) if key is not None else ("value", value)
    if given is not None:
        raise ArgumentError(
            f"{name}: expected None, an encoder reads one sequence. Received: {name}={type(given).__name__}. "
            "To read a second one, use a decoder"
        )


def check_value(key: Tensor, value: Tensor | None) -> None:
    """Raise ArgumentError if the values are not the same tensor as the keys."""
    if value is not None and value is not key:
        raise ArgumentError(
            "value: expected None, because the memory is one sequence. Received: another tensor. Pass the memory as key"
        )


def check_memory(key: Tensor | None) -> Tensor:
    """Return `key`, the memory [B, K, ·] that a decoder reads. Raise an error if it is missing or of another shape."""
    if key is None:
        raise ArgumentError(
            "key: expected the memory [B, K, memory_dim]. Received: key=None. "
            "For a model without memory use an encoder with mask=masks.causal()"
        )
    if not isinstance(key, Tensor):
        raise DtypeError(f"key: expected the memory, a tensor [B, K, memory_dim]. Received: key={type(key).__name__}")
    if key.ndim != 3:
        raise ShapeError(f"key: expected the memory [B, K, memory_dim]. Received: key={list(key.shape)}")
    return key


def check_mask(mask: Mask | Tensor | None, query: Tensor, heads: int | None, k_len: int, *, name: str = "mask") -> None:
    """Raise an error for a mask that does not fit, as attention would do, but before tokens are appended to a cache."""
    if mask is not None and not is_traced():
        fit_mask(mask, query, heads, query.shape[1], k_len, name=name)


def with_real(mask: Mask | Tensor | None, real: Tensor | None, *, memory: bool = False) -> Mask | None:
    """Combine a mask with padding: return the mask that allows what `mask` allows, but only real keys.

    `real`: bool [B, K], True = a real key. With `memory` the keys belong to the second sequence, which the queries
    read; otherwise to the queries' own sequence.
    """
    mask = None if mask is None else as_mask("mask", mask)
    real = None if real is None else parallel.whole(real, memory=memory)
    # Checking for padding costs nothing on the CPU; and without a padding mask, kernels need not look for padding.
    if real is None or (not is_traced() and real.device.type == "cpu" and bool(real.all())):
        return mask
    keys = masks.padding(real)
    return keys if mask is None else mask & keys


def follows(real: Tensor | None, *, cached: bool) -> bool:
    """Return whether real tokens are certainly consecutive in each row of `real`, bool [B, K]. A cache ensures it."""
    if real is None or cached:
        return True
    real = parallel.whole(real)
    if is_traced() or real.device.type != "cpu":
        return False
    begins = real & ~pad(real, (1, 0))[:, :-1]
    return bool((begins.sum(1) <= 1).all())


def compute_positions(
    x: Tensor, cache: Cache | None, real: Tensor | None, given: Tensor | None, *, memory: bool = False
) -> Tensor:
    """Return the positions of the tokens x [B, S, M], as [S] or [B, S].

    They are `given`, or else they are counted: from the end of the cache or from 0, without padding. With `memory` x is
    the second sequence, which the queries read.
    """
    if given is not None:
        return given  # the scheme checks their shape: patches have (row, column)
    if cache is not None:
        return cache.next_positions(x.shape[1], real, device=x.device)
    if real is None:
        return parallel.positions_here(x.shape[1], x.device, memory=memory)
    counted = (parallel.whole(real, memory=memory).long().cumsum(1) - 1).clamp(min=0)
    return parallel.rows_here(counted, memory=memory)
