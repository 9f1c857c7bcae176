"""Backward passes that have first derivatives alone, and say so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from headwise.errors import KernelRefused

Gradients = tuple[Tensor | None, ...]


def once_differentiable(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """For the backward of an autograd.Function: asking for derivatives of its gradients raises KernelRefused.

    It gets the saved tensors behind `ctx`: torch.utils.checkpoint lets them be asked for once.

    torch's decorator of this name lets them be 0 where the gradient that arrives is a constant, as that of a sum.
    """

    @functools.wraps(backward)
    def run(ctx: Any, *given: Tensor) -> Gradients:
        saved = ctx.saved_tensors
        if not torch.is_grad_enabled():  # no derivative of these is asked for (create_graph=False)
            return backward(ctx, saved, *given)
        with torch.no_grad():
            found = backward(ctx, saved, *given)
        # They hang on all that they follow from: else a caller that allows unused inputs would take it for unused.
        follows = [x for x in (*given, *saved) if x is not None and x.requires_grad]
        return tuple(None if x is None else _Last.apply(x.requires_grad_(), *follows) for x in found)

    return run


class _Last(torch.autograd.Function):
    """The first of its inputs. None of them has a derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *follows: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Tensor:
        raise KernelRefused(
            "second derivatives: this kernel has none, and a gradient of its gradients was asked for. In attention use "
            'kernel="reference"; in place of a loss by `labels` ask for the logits'
        )
