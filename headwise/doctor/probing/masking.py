"""Masks that hide some keys, for `Interface.run` and for one argument of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.doctor.probing.probe import length_of_keys

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Inputs, Interface
    from headwise.doctor.calling.mask_input import MaskInput


def hide(inputs: Inputs, *keys: int, example: int | None = None, own: bool = False) -> Tensor:
    """[B, Q, K], True = may attend: all but these keys, in one example or in all. `own`: of the queries."""
    batch, queries = inputs.query.shape[:2]
    allowed = torch.ones(batch, queries, queries if own else length_of_keys(inputs), dtype=torch.bool)
    examples = slice(None) if example is None else slice(example, example + 1)
    for key in keys:
        allowed[examples, :, key] = False
    return allowed


def left_padding(inputs: Inputs) -> Tensor:
    """[B, K], True = a real token: the first two tokens of example 1 are padding."""
    real = hide(inputs)[:, 0].clone()
    real[1, :2] = False
    return real


def given(
    interface: Interface, mask: MaskInput, inputs: Inputs, *keys: int, example: int | None = None
) -> dict[str, Any]:
    """The arguments of forward with which this one mask hides these keys. DoctorError if it cannot express that."""
    allowed = hide(inputs, *keys, example=example, own=mask.own)
    if mask.what == "keys":
        allowed = allowed[:, 0]
    value = mask.value(allowed, interface.heads or 1, inputs.query.dtype)
    return {mask.parameter: value}
