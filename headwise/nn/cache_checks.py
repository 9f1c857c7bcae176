"""Checks of tensors that are appended to a cache: they must fit each other and the cache, with padding on the left."""

from __future__ import annotations

from torch import Tensor

from headwise.errors import ArgumentError, CacheError, DtypeError, ShapeError
from headwise.nn.real import check_real
from headwise.tracing import is_traced

AGAIN = "Make a new Cache(), or reset() this one"


def check_tensors(tensors: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return B and S of the tensors [B, ·, S, ·]. Raise an error unless B and S are the same in all of them."""
    if not tensors:
        raise ArgumentError("append: expected one tensor or more. Received: none")
    for x in tensors:
        if not isinstance(x, Tensor):
            raise DtypeError(f"append: expected tensors [B, ·, S, ·]. Received: {type(x).__name__}")
    first = tensors[0]
    if any(x.ndim != 4 or x.shape[0] != first.shape[0] or x.shape[2] != first.shape[2] for x in tensors):
        received = ", ".join(str(list(x.shape)) for x in tensors)
        raise ShapeError(f"append: expected tensors [B, ·, S, ·] with one B and one S. Received: {received}")
    if any(x.device != first.device for x in tensors):
        raise DtypeError(
            f"append: expected tensors on one device. Received: {', '.join(str(x.device) for x in tensors)}"
        )
    return first.shape[0], first.shape[2]


def check_alike(held: tuple[Tensor, ...], tensors: tuple[Tensor, ...]) -> None:
    """Raise CacheError unless the new tensors can be appended to the tensors that the cache holds."""
    if len(held) != len(tensors):
        raise CacheError(
            f"append: expected {len(held)} tensors, as this cache holds. Received: {len(tensors)}. {AGAIN}"
        )
    for i, (old, x) in enumerate(zip(held, tensors, strict=True)):
        what = "" if len(held) == 1 else f" in tensor {i}"
        if old.shape[0] != x.shape[0]:
            raise CacheError(
                f"append: expected B={old.shape[0]}, as this cache holds. Received: B={x.shape[0]}. {AGAIN}"
            )
        if old.shape[1] != x.shape[1] or old.shape[3] != x.shape[3]:
            raise CacheError(
                f"append: expected {old.shape[1]} heads of dimension {old.shape[3]}{what}, as this cache holds. "
                f"Received: {x.shape[1]} heads of dimension {x.shape[3]}. {AGAIN}"
            )
        if old.device != x.device:
            raise CacheError(
                f"append: expected a tensor on {old.device}{what}, as this cache. Received: {x.device}. {AGAIN}"
            )
        if old.dtype != x.dtype:
            raise CacheError(
                f"append: expected {old.dtype}{what}, as this cache holds. Received: {x.dtype}. "
                f"Run every step inside the same torch.autocast, or none. {AGAIN}"
            )


def left_padded(real: Tensor | None, batch: int | None, count: int) -> Tensor | None:
    """Check which new tokens are real: padding must be on the left of each row. Return bool [B, count]; None = all."""
    real = check_real(real, batch, count)
    if real is None or is_traced():
        return real
    if bool(real.all()):
        return None
    gaps = (real[:, :-1] & ~real[:, 1:]).any(1)
    if bool(gaps.any()):
        raise ArgumentError(
            "real: expected padding on the left of each row only. Received: padding after a token in row "
            f"{int(gaps.nonzero()[0])}. Pad on the left (padding_side='left')"
        )
    return real
