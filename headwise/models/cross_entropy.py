"""The cross-entropy of tokens that a linear layer predicts, computed without all logits in memory.

All logits [N, V] at once are the largest tensor of a training step, and are read and written several times. Here 256
rows of logits stay in the processor's cache until their gradients are computed. Dimension letters: N tokens, M model,
V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from headwise.functional import no_attention
from headwise.kernels.once import once_differentiable
from headwise.native.attend import watching

ROWS = 256  # the number of rows of logits that are in memory at a time


def summed_cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Compute the sum of the cross-entropies of all rows, -log softmax(logits)[label].

    Returns a scalar: float32, or float64 for float64 logits.

    Args:
        logits: [N, V].
        labels, label_smoothing: as for `linear_cross_entropy`.
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return cross_entropy(logits, labels, label_smoothing=label_smoothing, reduction="sum")


def linear_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Compute the `summed_cross_entropy` of the logits h Wᵀ; on a CPU these logits are never all in memory.

    Under autocast the products have autocast's dtype; all sums are float32, or float64 for float64 inputs.

    Args:
        hidden: h [N, M].
        weight: W [V, M].
        labels: int64 [N], the right token of each row, from 0 to V - 1.
        label_smoothing: the part of the target probability, from 0 to 1, that is spread evenly over all tokens.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden.dtype
    # With float16, the loss must be scaled before its gradients become float16.
    in_pieces = hidden.device.type == "cpu" and dtype != torch.float16 and not torch.compiler.is_compiling()
    if not in_pieces or watching(hidden, weight):
        return summed_cross_entropy(linear(hidden, weight), labels, label_smoothing=label_smoothing)
    asked = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    with no_attention():
        total: Tensor = _LinearCrossEntropy.apply(hidden, weight, labels, label_smoothing, dtype, asked)
    return total


class _LinearCrossEntropy(torch.autograd.Function):
    """Computes the gradients of a block of rows while the logits of these rows are in memory."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, smoothing: float, dtype: torch.dtype, asked: bool
    ) -> Tensor:
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        with torch.autocast("cpu", enabled=False):
            h, w = hidden.detach().to(dtype), weight.detach().to(dtype)
            total = torch.zeros((), dtype=exact)
            d_h, d_w = (torch.empty_like(h), torch.zeros_like(w, dtype=exact)) if asked else (None, None)
            for start in range(0, len(h), ROWS):
                piece = slice(start, start + ROWS)
                logits, label = (h[piece] @ w.T).to(exact), labels[piece, None]
                log_sum = logits.logsumexp(1, keepdim=True)
                total += log_sum.sum() - (1 - smoothing) * logits.gather(1, label).sum()
                if smoothing:
                    total -= smoothing * logits.mean(1).sum()
                if d_h is None or d_w is None:
                    continue
                d_logits = logits.sub_(log_sum).exp_()  # softmax minus the target distribution
                if smoothing:
                    d_logits -= smoothing / len(w)
                d_logits.scatter_add_(1, label, d_logits.new_full(label.shape, smoothing - 1))
                d_logits = d_logits.to(dtype)
                torch.mm(d_logits, w, out=d_h[piece])
                if dtype == exact:
                    d_w.addmm_(d_logits.T, h[piece])
                else:
                    d_w += d_logits.T @ h[piece]
        ctx.save_for_backward(d_h, d_w)
        ctx.dtypes = hidden.dtype, weight.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, saved: tuple[Any, ...], d_total: Tensor) -> tuple[Tensor | None, ...]:
        (d_h, d_w), (of_hidden, of_weight) = saved, ctx.dtypes
        return (d_h * d_total).to(of_hidden), (d_w * d_total).to(of_weight), None, None, None, None
