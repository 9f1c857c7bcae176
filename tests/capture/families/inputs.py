"""What a model of any family is given: by the names in the signature of its forward, and the sizes in its config.

`candidates` are tried in order until the model takes one.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from tests.capture.families.making import BATCH, LENGTH, noise
from tests.capture.families.overrides import OVERRIDES

Padding = Literal["none", "left", "right"]
Inputs = dict[str, Any]

PADDED = 5
_MISMATCH = re.compile(r"tokens\D*?(\d+)\D*?features\D*?(\d+)", re.IGNORECASE | re.DOTALL)


def found(config: PreTrainedConfig, names: tuple[str, ...], parts: tuple[str, ...] = (), default: Any = None) -> Any:
    """The first of these fields, in the parts of the config first whose names contain one of `parts`."""
    inner = [(name, x) for name, x in vars(config).items() if isinstance(x, PreTrainedConfig)]
    first = [x for name, x in inner if any(part in name for part in parts)]
    rest = [x for name, x in inner if not any(part in name for part in parts)]
    for each in first:
        value = found(each, names, parts)
        if value is not None:
            return value
    for name in names:
        value = vars(config).get(config.attribute_map.get(name, name))
        if isinstance(value, (int, float, list, tuple)) and not isinstance(value, bool):
            return value
    for each in rest:
        value = found(each, names, parts)
        if value is not None:
            return value
    return default


def _one(x: Any) -> int:
    return int(x[0]) if isinstance(x, (list, tuple)) else int(x)


def candidates(model: Any, family: str) -> Iterator[Inputs]:
    """Inputs without padding, the fullest first."""
    special = OVERRIDES.get(family, {})
    if "GIVE" in special:
        yield special["GIVE"](model.config)
        return
    if "START" in special:
        yield special["START"](model)
        return
    more = special.get("MORE", dict)
    for inputs in _candidates(model, special.get("LENGTH", LENGTH)):
        yield more(inputs)


def _candidates(model: Any, length: int) -> Iterator[Inputs]:
    parameters = inspect.signature(model.forward).parameters
    names = set(parameters)
    required = {
        name
        for name, x in parameters.items()
        if x.default is x.empty and x.kind not in (x.VAR_KEYWORD, x.VAR_POSITIONAL)
    }
    images, sounds, texts = (
        list(_images(model.config, names)),
        list(_sounds(model.config, names)),
        list(_text(model.config, names, length)),
    )

    def complete(chosen: Inputs) -> Inputs:
        return {**{name: _by_name(name, model.config) for name in required - set(chosen)}, **chosen}

    for text in texts:
        for image in images:
            if image:
                for count in (1, 4):
                    yield {**complete({**text, **image}), "images": count}
    seen = [x for x in (*sounds, *images) if x]
    for other in [*seen, {}]:
        for text in [*texts, {}] if (seen and not other) or not seen else [{}, *texts]:
            chosen = complete({**other, **text})
            if chosen:
                yield chosen


def _ids(config: PreTrainedConfig, length: int = LENGTH, seed: int = 1) -> Tensor:
    size = found(config, ("vocab_size", "src_vocab_size"), ("text", "decoder"), 64)
    generator = torch.Generator().manual_seed(seed)
    special = {
        x for name, x in vars(config).items() if name.endswith(("token_id", "token_index")) and isinstance(x, int)
    }
    allowed = torch.tensor([i for i in range(3, min(int(size), 100)) if i not in special])
    return allowed[torch.randint(0, len(allowed), (BATCH, length), generator=generator)]


def _text(config: PreTrainedConfig, names: set[str], length: int) -> Iterator[Inputs]:
    chosen: Inputs = {}
    if "input_ids" in names:
        chosen["input_ids"] = _ids(config, length)
    if "bbox" in names:
        corner = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH, 1) % 20
        chosen["bbox"] = torch.cat([corner, corner + 1, corner + 3, corner + 6], -1)
    if "decoder_input_ids" in names:
        yield {**chosen, "decoder_input_ids": _ids(config, 7, 2)}
    if chosen:
        yield chosen


def _images(config: PreTrainedConfig, names: set[str]) -> Iterator[Inputs]:
    parts = ("vision", "image", "visual", "backbone", "encoder", "vit")
    channels = _one(found(config, ("num_channels", "in_channels", "in_chans", "num_input_channels"), parts, 3))
    size = found(config, ("image_size", "img_size", "crop_size"), parts, 64)
    height, width = (int(size[0]), int(size[-1])) if isinstance(size, (list, tuple)) else (int(size), int(size))
    patch = _one(found(config, ("patch_size", "spatial_patch_size"), parts, 14))
    frames = _one(found(config, ("num_frames", "frames_per_clip"), parts, 2))
    deep = _one(found(config, ("temporal_patch_size",), parts, 1))
    merge = _one(found(config, ("spatial_merge_size", "merge_size"), parts, 2))
    grid_name = next(
        (name for name in ("image_grid_thw", "grid_thw", "image_grid_hws", "image_grid_hw") if name in names), None
    )
    if "hidden_states" in names and grid_name == "grid_thw":
        pixels = "hidden_states"
    else:
        pixels = next(
            (
                name
                for name in ("pixel_values", "pixel_values_videos", "images", "pixel_values_images")
                if name in names
            ),
            "",
        )
    if not pixels:
        yield {}
        return
    if grid_name is not None:
        side = 2 * merge
        grid = torch.tensor([[1, side, side]] * BATCH)
        grid = grid[:, 1:] if grid_name == "image_grid_hw" else grid
        count = BATCH * side * side
        for shape in ((channels * deep * patch * patch,), (channels * patch * patch,), (channels, patch, patch)):
            yield {pixels: noise(count, *shape), grid_name: grid}
        yield {pixels: noise(count, 2 * channels * patch * patch), grid_name: grid}
        return
    if names & {"spatial_shapes", "pixel_position_ids"}:  # 4 by 4 patches in a row
        places = torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(BATCH, 16, 2)
        given = {"spatial_shapes": torch.full((BATCH, 2), 4), "pixel_position_ids": places}
        given |= {"pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long)}
        given = {name: x for name, x in given.items() if name in names}
        yield {pixels: noise(BATCH, 16, channels * patch * patch), **given}
    for h, w in {(height, width): 0, (64, 64): 0, (128, 128): 0, (224, 224): 0}:
        if h <= 512:
            yield {pixels: noise(BATCH, channels, h, w)}
            yield {pixels: noise(BATCH, frames, channels, h, w)}
    h, w = min(height, 512), min(width, 512)
    yield {pixels: noise(BATCH, 1, channels, h, w)}
    if "pixel_attention_mask" in names:
        yield {
            pixels: noise(BATCH, 1, channels, h, w),
            "pixel_attention_mask": torch.ones(BATCH, 1, h, w, dtype=torch.long),
        }
    if "image_sizes" in names:
        yield {pixels: noise(BATCH, channels, h, w), "image_sizes": torch.tensor([[h, w]] * BATCH)}
        yield {pixels: noise(BATCH, 3, channels, h, w), "image_sizes": torch.tensor([[h, 2 * w]] * BATCH)}
    yield {pixels: noise(BATCH, channels, frames, h, w)}
    yield {pixels: noise(BATCH, 16, channels * patch * patch)}


def _sounds(config: PreTrainedConfig, names: set[str]) -> Iterator[Inputs]:
    parts = ("audio", "encoder", "speech")
    bins = _one(
        found(
            config,
            (
                "feature_projection_input_dim",
                "num_mel_bins",
                "mel_bins",
                "feature_size",
                "input_feat_per_channel",
                "input_feat_size",
                "num_mel_channels",
                "input_dim",
            ),
            parts,
            80,
        )
    )
    sources = found(config, ("max_source_positions",), parts)
    window = _one(found(config, ("n_window",), parts, 0))
    with_mask: Inputs = {}
    if "input_features" in names:
        lengths = [*([2 * _one(sources)] if sources else []), *([2 * window] if window else []), 64, 100]
        for length in lengths:
            for shape in ((BATCH, bins, length), (BATCH, length, bins)):
                for mask in ("input_features_mask", "feature_attention_mask", "attention_mask"):
                    with_mask = {mask: torch.ones(BATCH, length, dtype=torch.long)} if mask in names else {}
                    yield {"input_features": noise(*shape), **with_mask}
                yield {"input_features": noise(*shape)}
    elif "input_values" in names:
        channels = _one(found(config, ("audio_channels",), parts, 1))
        yield {"input_values": noise(BATCH, 4000)}
        yield {"input_values": noise(BATCH, channels, 4000)}
        length = _one(found(config, ("max_length",), parts, 64))
        yield {"input_values": noise(BATCH, length, bins)}
        yield {"input_values": noise(BATCH, bins, 64)}
        yield {"input_values": noise(BATCH, 1, 1024, 64)}
    else:
        yield {}


def _by_name(name: str, config: PreTrainedConfig) -> Any:
    width = _one(found(config, ("hidden_size", "d_model", "embed_dim"), (), 32))
    if "mask" in name:
        return torch.ones(BATCH, LENGTH, dtype=torch.long)
    if name == "merge_sizes":
        return torch.ones(BATCH, dtype=torch.long)
    if name.endswith("ids"):
        return _ids(config)
    return noise(BATCH, LENGTH, width)


def ready(inputs: Inputs, model: Any) -> Inputs:
    """Inputs with the places of images in the text, where the text says how many there are."""
    inputs = dict(inputs)
    count = inputs.pop("images", None)
    if count:
        token = next(
            (
                getattr(model.config, name)
                for name in ("image_token_id", "image_token_index", "media_token_id", "img_token_id")
                if isinstance(getattr(model.config, name, None), int)
            ),
            None,
        )
        if token is not None:
            ids = inputs["input_ids"]
            places = torch.full((BATCH, count), token)
            inputs["input_ids"] = torch.cat([ids[:, :3], places, ids[:, 3:]], 1)
            inputs.pop("bbox", None)
            if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
                inputs["mm_token_type_ids"] = (inputs["input_ids"] == token).long()
    return inputs


def expected_places(error: Exception) -> int | None:
    """How many places an example needs, by the model's own message."""
    match = _MISMATCH.search(str(error))
    return int(match[2]) // BATCH if match and int(match[2]) >= BATCH else None


def padded(inputs: Inputs, padding: Padding, model: Any) -> Inputs | None:
    """The inputs with a mask of padding; None where the model takes none."""
    if padding == "none":
        return inputs
    names = inspect.signature(model.forward).parameters
    ids = inputs.get("input_ids")
    main = ids if isinstance(ids, Tensor) else inputs.get("input_values", inputs.get("input_features"))
    if "attention_mask" not in names or not isinstance(main, Tensor) or main.ndim not in (2, 3) or len(main) < 2:
        return None
    had = inputs.get("attention_mask")
    length = had.shape[-1] if isinstance(had, Tensor) else main.shape[1]
    mask = torch.ones(len(main), length, dtype=torch.long)
    cut = max(1, length * PADDED // LENGTH) if ids is None else PADDED - 2
    if ids is not None and length > 2 * LENGTH:
        cut = 3
    if padding == "left":
        mask[1, :cut] = 0
    else:
        mask[1, -cut:] = 0
    return {**inputs, "attention_mask": mask}
