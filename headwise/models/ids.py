"""Checks of token ids."""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.tracing import is_traced


def check_ids(name: str, ids: Tensor, size: int) -> None:
    """Raise an error unless `ids` are integers [B, S] from 0 to size - 1. Values are not checked while torch traces."""
    if ids.ndim != 2:
        raise ShapeError(f"{name}: expected [B, S]. Received: {name}={list(ids.shape)}")
    if ids.dtype not in (torch.int64, torch.int32):
        raise DtypeError(f"{name}: expected int64 or int32. Received: {name}={ids.dtype}")
    if ids.numel() == 0 or is_traced():
        return
    # An index error of torch (on a GPU it ends the process) says neither which id is wrong nor what the limit is.
    lowest, highest = (int(bound) for bound in ids.aminmax())
    if lowest < 0 or highest >= size:
        raise ArgumentError(
            f"{name}: expected ids from 0 to {size - 1}. Received: {name} with {lowest if lowest < 0 else highest}. "
            "Do the tokenizer and the model come from the same checkpoint?"
        )
