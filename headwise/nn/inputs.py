"""What attention modules check of their inputs and prepare of them: ranks and widths, padding, positions."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise import masks
from headwise.call import fit_mask
from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.masks import Mask
from headwise.masks.cellwise import as_mask
from headwise.nn.cache import Cache


def check_input(name: str, x: Tensor, width: int, *, batch: int | None = None) -> None:
    """Raise unless `x` is a tensor [B, S, width], of `batch` examples if that is given."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"{name}: expected a tensor [B, S, {width}], received {type(x).__name__}")
    if x.ndim != 3 or x.shape[-1] != width:
        hint = ". One sequence is a batch of one: x[None]" if x.ndim == 2 and x.shape[-1] == width else ""
        raise ShapeError(f"{name}: expected [B, S, {width}], received {list(x.shape)}{hint}")
    if batch is not None and x.shape[0] != batch:
        raise ShapeError(f"{name}: expected as many examples as query has, {batch}, received {list(x.shape)}")


def check_padding(padding: Tensor | None, key: Tensor, *, name: str = "padding") -> None:
    """Raise unless `padding` is None or bool [B, K], one entry for each position of `key` [B, K, ·]."""
    if padding is None:
        return
    if not isinstance(padding, Tensor) or padding.dtype != torch.bool:
        received = padding.dtype if isinstance(padding, Tensor) else type(padding).__name__
        raise DtypeError(f"{name}: expected a bool tensor [B, K], True = a real token, received {received}")
    if padding.shape != key.shape[:2]:
        raise ShapeError(f"{name}: expected [B, K] = {list(key.shape[:2])}, received {list(padding.shape)}")


def check_alone(key: object, value: object) -> None:
    """Raise ArgumentError unless an encoder was given nothing but its one sequence."""
    if key is not None or value is not None:
        raise ArgumentError(
            f"{'key' if key is not None else 'value'}: expected None, an encoder reads one sequence, received "
            f"{type(key if key is not None else value).__name__}. To read another one use a decoder"
        )


def check_value(key: Tensor, value: Tensor | None) -> None:
    """Raise ArgumentError for values that are another sequence than the keys."""
    if value is not None and value is not key:
        raise ArgumentError("value: expected None, what is read is one sequence: pass it as key")


def check_memory(key: Tensor | None) -> Tensor:
    """The memory [B, K, ·]; an error if a decoder was given none, or no such thing."""
    if key is None:
        raise ArgumentError(
            "key: expected the memory [B, K, memory_dim] that a decoder reads, received None. "
            "A model without one is an encoder with mask=masks.causal()"
        )
    if not isinstance(key, Tensor):
        raise DtypeError(f"key: expected the memory, a tensor [B, K, memory_dim], received {type(key).__name__}")
    if key.ndim != 3:
        raise ShapeError(f"key: expected the memory [B, K, memory_dim], received {list(key.shape)}")
    return key


def check_mask(mask: Mask | Tensor | None, query: Tensor, heads: int | None, k_len: int, *, name: str = "mask") -> None:
    """Raise what attention would say of a mask that does not fit, before a cache has taken the query's tokens."""
    if mask is not None and not torch.compiler.is_compiling():
        fit_mask(mask, query, heads, query.shape[1], k_len, name=name)


def with_padding(mask: Mask | Tensor | None, padding: Tensor | None) -> Mask | None:
    """The pairs that `mask` allows, of those whose key is a real token."""
    mask = None if mask is None else as_mask("mask", mask)
    # On the CPU a look costs nothing, and the kernels need not look for padding that is not there.
    if padding is None or (not torch.compiler.is_compiling() and padding.device.type == "cpu" and bool(padding.all())):
        return mask
    real = masks.padding(padding)
    return real if mask is None else mask & real


def positions_of(x: Tensor, cache: Cache | None, padding: Tensor | None, given: Tensor | None) -> Tensor:
    """Where the tokens x [B, S, M] stand, [S] or [B, S]: as given, or counted on from the cache, padding left out."""
    if given is not None:
        return given  # what shape they may have is the scheme's to say: of patches they are (row, column)
    if cache is not None:
        return cache.next_positions(x.shape[1], padding, device=x.device)
    if padding is not None:
        return (padding.long().cumsum(1) - 1).clamp(min=0)
    return torch.arange(x.shape[1], device=x.device)
