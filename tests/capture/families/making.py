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


def patches(config: Any) -> Tensor:
    """Flattened patches with their row and column in front."""
    place = torch.arange(1.0, 9.0).view(1, 8, 1).expand(BATCH, 8, 2)
    return torch.cat([place, noise(BATCH, 8, config.patch_embed_hidden_size)], -1)


def codes(config: Any) -> dict[str, Tensor]:
    """A text, and the codes of sounds in all codebooks."""
    return {"input_ids": tokens(), "decoder_input_ids": tokens(7, 30).repeat(config.decoder.num_codebooks, 1)}
