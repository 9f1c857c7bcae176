"""Compares the next-token probabilities of two runs, and measures how far apart they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

TOP = 10  # tokens listed of each run


def compared(plain: Tensor, edited: Tensor, text_of: Callable[[int], str], top: int = TOP) -> dict[str, Any]:
    """Compare two runs by their logits [V] at one position: the `top` likeliest tokens of each, and two distances.

    "distance" is the total variation distance, between 0 and 1; "divergence" is KL(plain ‖ edited) in nats.
    """
    logs = [logits.double().log_softmax(-1) for logits in (plain, edited)]
    p, q = (each.exp() for each in logs)
    likeliest = torch.cat([each.topk(min(top, each.numel())).indices for each in (p, q)]).unique().tolist()
    likeliest.sort(key=lambda token: -max(float(p[token]), float(q[token])))
    divergence = torch.where(p > 0, p * (logs[0] - logs[1]), 0.0).sum().clamp(min=0)
    return {
        "tokens": [
            {"id": token, "text": text_of(token), "plain": float(p[token]), "edited": float(q[token])}
            for token in likeliest
        ],
        "distance": float((p - q).abs().sum() / 2),
        "divergence": float(divergence) if torch.isfinite(divergence) else None,
    }
