"""Tensors that models are given, always the same ones."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DFlashCache

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


def fresh(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs of one call: a copy of what a call changes, as a cache."""
    return {name: x if isinstance(x, Tensor) else copy.deepcopy(x) for name, x in inputs.items()}


def tracked(family: str, session: str, side: int) -> Callable[[Any], dict[str, Any]]:
    """The second frame of a video [2, 3, side, side], in whose first one an object was pointed at."""

    def start(model: Any) -> dict[str, Any]:
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        video = noise(2, 3, side, side)
        state = getattr(module, session)(video, video_height=side, video_width=side, dtype=torch.float32)
        point = {"point_coords": torch.tensor([[[[10.0, 12.0]]]]), "point_labels": ones(1, 1, 1).int()}
        state.add_point_inputs(state.obj_id_to_idx(1), 0, point)
        state.obj_with_new_inputs = [1]
        with torch.no_grad():
            model(inference_session=state, frame_idx=0)
        return {"inference_session": state, "frame_idx": 1}

    return start


def drafted(model: Any) -> dict[str, Any]:
    """A block that a diffusion model drafts, after the states of 12 tokens that were accepted."""
    cache, width = DFlashCache(config=model.config), model.config.hidden_size
    cache.set_previous_accepted_tokens(12)
    given = {"noise_embeds": noise(2, 6, width), "context_hidden_states": noise(2, 12, 5 * width)}
    return {**given, "past_key_values": cache}
