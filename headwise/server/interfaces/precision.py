"""The precision in which PyTorch computes a served model."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from headwise.errors import ArgumentError
from headwise.tasks.columns import Column, Row

Precision = Literal["fp32", "bf16", "int8"]
TOLERANCE = 0.1  # largest error in bf16, relative to the largest value of the column


def check(precision: str, device: torch.device) -> Precision:
    """Check that PyTorch supports the precision here and does not compute more slowly in it than in fp32.

    Raises:
        ArgumentError: the precision is unknown or not supported; the message says what to do.
    """
    if precision not in get_args(Precision):
        raise ArgumentError(
            f"precision: expected one of {', '.join(get_args(Precision))}. Received: precision={precision!r}"
        )
    if precision == "int8":
        raise ArgumentError(
            "precision: backend torch supports fp32 and bf16. Received: precision='int8'. ONNX Runtime supports int8: "
            "headwise export RUN --to onnx --precision int8 --out DIR, and serve DIR"
        )
    if precision == "bf16" and device.type == "cpu" and not has_bfloat16():
        raise ArgumentError(
            "precision: this processor has no instructions for bf16 (avx512_bf16, amx), so it would be several times "
            "slower than fp32. Received: precision='bf16'. Choose fp32, or export to ONNX with --precision int8"
        )
    return precision  # type: ignore[return-value]


def has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16 arithmetic."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def computing(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A context in which a pass of the model computes in this precision."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def compare(columns: Sequence[Column], exact: Row, found: Row) -> None:
    """Check that an answer is close to the answer of the same model in float32.

    Raises:
        ArgumentError: a number differs by more than the rounding of bfloat16, which has about three digits.
    """
    for column in columns:
        if column.datatype.startswith("FP") and column.name in exact:
            x, y = (np.asarray(row[column.name], dtype=np.float64) for row in (exact, found))
            furthest = float(np.abs(x - y).max(initial=0) / max(np.abs(x).max(initial=0), 1e-9))
            if not furthest <= TOLERANCE:
                raise ArgumentError(
                    f"precision: in bf16, {column.name} differs by {furthest:.0%} from fp32 for the example row of "
                    "this model. Choose fp32"
                )
