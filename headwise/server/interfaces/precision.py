"""The numbers that a served model computes with on PyTorch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch

from headwise.errors import ArgumentError
from headwise.server.interface import Column, Row

Precision = Literal["fp32", "bf16", "int8"]
TOLERANCE = 0.1  # of a number in bf16, as a share of the largest of its kind


def check(precision: str, device: torch.device) -> Precision:
    """The precision, if PyTorch can serve with it here, faster than with another.

    Raises:
        ArgumentError: it is none, or cannot; what to do instead.
    """
    if precision not in get_args(Precision):
        raise ArgumentError(f"precision: expected one of {', '.join(get_args(Precision))}, received {precision!r}")
    if precision == "int8":
        raise ArgumentError(
            "precision: backend torch serves fp32 or bf16, received 'int8'. ONNX Runtime has int8: "
            "headwise export RUN --to onnx --precision int8 --out DIR, and serve DIR"
        )
    if precision == "bf16" and device.type == "cpu" and not has_bfloat16():
        raise ArgumentError(
            "precision: received 'bf16', and this processor has no instructions for it (avx512_bf16, amx), so that it "
            "would be several times slower than fp32. Choose fp32, or export to ONNX with --precision int8"
        )
    return precision  # type: ignore[return-value]


def has_bfloat16() -> bool:
    """Whether the processor computes in bfloat16, and does not convert each number instead."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def computing(precision: Precision, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """What a pass of the model runs inside of."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return contextlib.nullcontext()


def compare(columns: Sequence[Column], exact: Row, found: Row) -> None:
    """That an answer is about what the same model gives in float32.

    Raises:
        ArgumentError: a number is further from it than bfloat16, which has three digits, should bring it.
    """
    for column in columns:
        if column.datatype.startswith("FP") and column.name in exact:
            x, y = (np.asarray(row[column.name], dtype=np.float64) for row in (exact, found))
            furthest = float(np.abs(x - y).max(initial=0) / max(np.abs(x).max(initial=0), 1e-9))
            if not furthest <= TOLERANCE:
                raise ArgumentError(
                    f"precision: in bf16 {column.name} is {furthest:.0%} off what it is in fp32, for the example of "
                    "this model. Choose fp32"
                )
