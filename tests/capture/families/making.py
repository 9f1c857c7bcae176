"""Tensors that models are given, always the same ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BATCH, LENGTH = 2, 12


def noise(*shape: int, seed: int = 3) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ones(*shape: int) -> Tensor:
    """A mask of integers without padding."""
    return torch.ones(shape, dtype=torch.long)


def tokens(length: int = LENGTH, most: int = 40, seed: int = 1) -> Tensor:
    """Token ids [2, length] of 3 … most - 1."""
    return torch.randint(3, most, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def series(config: Any) -> dict[str, Tensor]:
    """What a model of time series is given."""
    length = config.context_length + max(config.lags_sequence)
    times = config.num_time_features
    return {
        "past_values": noise(BATCH, length),
        "past_time_features": noise(BATCH, length, times),
        "past_observed_mask": torch.ones(BATCH, length),
        "future_values": noise(BATCH, config.prediction_length, seed=4),
        "future_time_features": noise(BATCH, config.prediction_length, times),
    }
