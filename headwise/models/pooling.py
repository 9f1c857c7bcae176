"""Makes one vector of a text: the mean of the hidden states of its real tokens."""

from __future__ import annotations

from torch import Tensor

from headwise.nn.real import check_real


def average_real(states_BSM: Tensor, real: Tensor | None) -> Tensor:
    """Compute the mean [B, M] of the hidden states over the real tokens.

    `real` [B, S]: True or 1 = a real token; None = all. The states at padding are ignored, even if they are NaN.
    """
    real = check_real(real, *states_BSM.shape[:2])
    if real is None:
        return states_BSM.mean(1)
    real_BS1 = real[..., None]
    return states_BSM.masked_fill(~real_BS1, 0.0).sum(1) / real_BS1.sum(1)
