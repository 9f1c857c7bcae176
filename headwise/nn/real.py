"""Checks the argument `real=` of modules, caches and models, which says which tokens are real and which are padding."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError, brief
from headwise.tracing import is_traced


def check_real(real: Tensor | None, batch: int | None, length: int, *, name: str = "real") -> Tensor | None:
    """Return `real` as bool [B, K], True = a real token; None = all tokens are real.

    PyTorch's key_padding_mask has the opposite polarity: pass `real=~key_padding_mask`. The values of integers are
    checked, on a GPU at the cost of a synchronisation, but not while torch.compile or torch.export traces.

    Args:
        real: bool or integers [B, K], True or 1 = a real token, False or 0 = padding.
        batch: B; None = any batch size.
        length: K.
        name: the name of the argument in error messages.

    Raises:
        DtypeError: not a tensor of bool or integers.
        ShapeError: a tensor of another shape.
        ArgumentError: integers other than 0 and 1.
    """
    if real is None:
        return None
    if not isinstance(real, Tensor) or real.is_floating_point() or real.is_complex():
        received = real.dtype if isinstance(real, Tensor) else type(real).__name__
        hint = ""
        if isinstance(real, Tensor):
            hint = f". For a mask of 1.0 and 0.0 pass {name}=mask.bool(), for one of 0 and -inf {name}=mask == 0"
        raise DtypeError(
            f"{name}: expected bool or integers [B, K], True or 1 = a real token, False or 0 = padding. "
            f"Received: {name}={received}{hint}"
        )
    if real.ndim != 2 or real.shape[1] != length or real.shape[0] != (real.shape[0] if batch is None else batch):
        hint = ". For lengths pass torch.arange(K) < lengths[:, None]" if real.ndim == 1 else ""
        raise ShapeError(
            f"{name}: expected [{'B' if batch is None else batch}, {length}], one entry for each token. "
            f"Received: {name}={list(real.shape)}{hint}"
        )
    if real.dtype == torch.bool:
        return real
    found = real.bool()
    if not is_traced() and not torch.equal(found.to(real.dtype), real):
        raise ArgumentError(
            f"{name}: expected 1 for real tokens and 0 for padding. Received: {name} with the values "
            f"{brief(real.unique().tolist())}"
        )
    return found
