"""What the tests of latents share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.nn.latent import LatentAttention


def close(x: Tensor, y: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(x, y, atol=tolerance, rtol=0)


def gradient(module: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """What a loss that is no symmetric one gives to the input."""
    x = x.detach().clone().requires_grad_()
    out = module(x, *args, **kwargs)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    assert x.grad is not None
    return x.grad


def make(**options: Any) -> LatentAttention:
    """Three latents of width 8 over an input of width 6."""
    return LatentAttention(3, 8, 6, 2, **options)


def shake(module: nn.Module) -> None:
    """Every parameter random: norms and biases that are 1 and 0 would hide what is not copied."""
    with torch.no_grad():
        for x in module.parameters():
            x.normal_(std=0.5)
