"""What may be appended to a cache: tensors that belong together and to what it holds, and padding on the left."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.errors import ArgumentError, CacheError, DtypeError, ShapeError

AGAIN = "Make a new Cache(), or reset() this one"


def check_tensors(tensors: tuple[Tensor, ...]) -> tuple[int, int]:
    """B and S of tensors [B, ·, S, ·] that belong together."""
    if not tensors:
        raise ArgumentError("append: expected one tensor or more, received none")
    for x in tensors:
        if not isinstance(x, Tensor):
            raise DtypeError(f"append: expected tensors [B, ·, S, ·], received {type(x).__name__}")
    first = tensors[0]
    if any(x.ndim != 4 or x.shape[0] != first.shape[0] or x.shape[2] != first.shape[2] for x in tensors):
        received = ", ".join(str(list(x.shape)) for x in tensors)
        raise ShapeError(f"append: expected tensors [B, ·, S, ·] with one B and one S, received {received}")
    if any(x.device != first.device for x in tensors):
        raise DtypeError(
            f"append: expected tensors on one device, received {', '.join(str(x.device) for x in tensors)}"
        )
    return first.shape[0], first.shape[2]


def check_alike(held: tuple[Tensor, ...], tensors: tuple[Tensor, ...]) -> None:
    """Raise CacheError unless the tensors can be appended to what is held."""
    if len(held) != len(tensors):
        raise CacheError(f"this cache holds {len(held)} tensors a token, received {len(tensors)}. {AGAIN}")
    for i, (old, x) in enumerate(zip(held, tensors, strict=True)):
        what = "" if len(held) == 1 else f" in tensor {i}"
        if old.shape[0] != x.shape[0]:
            raise CacheError(f"this cache holds B = {old.shape[0]}, received B = {x.shape[0]}. {AGAIN}")
        if old.shape[1] != x.shape[1] or old.shape[3] != x.shape[3]:
            raise CacheError(
                f"this cache holds {old.shape[1]} heads of width {old.shape[3]}{what}, "
                f"received {x.shape[1]} heads of width {x.shape[3]}. {AGAIN}"
            )
        if old.device != x.device:
            raise CacheError(f"this cache is on {old.device}, received {x.device}{what}. {AGAIN}")
        if old.dtype != x.dtype:
            raise CacheError(
                f"this cache holds {old.dtype}, received {x.dtype}{what}. "
                f"Run every step inside the same torch.autocast, or none. {AGAIN}"
            )


def padded(padding: Tensor | None, batch: int | None, count: int) -> Tensor | None:
    """The padding of [B, count] tokens if it is well formed; None if all of them are real."""
    if padding is None:
        return None
    if not isinstance(padding, Tensor) or padding.dtype != torch.bool:
        received = padding.dtype if isinstance(padding, Tensor) else type(padding).__name__
        raise DtypeError(f"padding: expected a bool tensor [B, S], True = a real token, received {received}")
    if padding.ndim != 2 or padding.shape[1] != count or padding.shape[0] != (batch or padding.shape[0]):
        rows = "B" if batch is None else batch
        raise ShapeError(f"padding: expected [{rows}, {count}], received {list(padding.shape)}")
    if torch.compiler.is_compiling():
        return padding
    if bool(padding.all()):
        return None
    if bool((padding[:, :-1] & ~padding[:, 1:]).any()):
        row = int((padding[:, :-1] & ~padding[:, 1:]).any(1).nonzero()[0])
        raise ArgumentError(
            f"padding: expected it on the left of each row's tokens, received row {row} with padding after a token. "
            "Pad on the left (padding_side='left')"
        )
    return padding
