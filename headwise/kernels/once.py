"""Backward passes that give only first derivatives, and raise an error if higher derivatives are requested."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.errors import KernelRefused

Gradients = tuple[Tensor | None, ...]


def once_differentiable(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Decorate the backward of an autograd.Function: a request for derivatives of its gradients raises KernelRefused.

    The decorated function gets the saved tensors as an argument after `ctx`: torch.utils.checkpoint lets
    `ctx.saved_tensors` be read only once.

    torch's decorator of this name silently gives 0 as the derivative where the incoming gradient is a constant, such as
    the gradient of a sum.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *given: Tensor) -> Gradients:
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():  # no derivative of these gradients is requested (create_graph=False)
            return backward(ctx, saved, *given)
        with torch.no_grad():
            found = backward(ctx, saved, *given)
        # The gradients are made to depend on all inputs: a caller that allows unused inputs would take them for unused.
        follows = [x for x in (*given, *saved) if x is not None and x.requires_grad]
        return tuple(None if x is None else _Last.apply(x.requires_grad_(), *follows) for x in found)

    return run


class _Last(torch.autograd.Function):
    """Returns its first input. Its backward, which a request for a second derivative runs, raises KernelRefused."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *follows: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        raise KernelRefused(
            "second derivatives: this kernel has none, and a gradient of its gradients was asked for. In attention use "
            'kernel="reference"; in place of a loss by `labels` ask for the logits'
        )
