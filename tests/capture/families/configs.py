"""A tiny config of any family, from the defaults of its class: few layers, narrow, a small vocabulary.

Widths are all divided by the same number, so that what belongs together (hidden size = heads · head size, the text's
and the image's projections) stays together; what an architecture needs beyond that stands in `overrides.py`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from typing import Any

from transformers import PreTrainedConfig, configuration_utils
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.capture.families.overrides import OVERRIDES

VOCABULARY, LAYERS, WINDOW = 160, 2, 4

_WIDTH = re.compile(
    r"(^|_)(hidden_size|hidden_sizes|intermediate_size|d_model|d_kv|d_ff|d_inner|ffn_dim|n_embd|n_inner|embed_dim|embed_dims|head_dim|dim"
    r"|hidden_dim|embedding_size|embedding_dim|projection_dim|mlp_dim|lora_rank|width|d_embed|d_head|ffn_hidden_size"
    r"|emb_dim|kv_channels|dim_head|dim_feedforward|d_feedforward|d_attn|mlp_hidden_size|inner_dim|head_size|proj_dim|attn_dim"
    r"|latent_size|encoder_dim|decoder_dim|feedforward_dim|d_latents|latent_dim|output_dim|conv_dim|embed_hidden_size|hidden_channels"
    r"|neck_hidden_sizes|d_states|out_hidden_size|text_width|query_dim|key_dim|mlp_intermediate_size|proj_size|mamba_expand_dim|output_channels|embed_dim_per_stage|backbone_channel_list|fpn_channels|encoder_in_channels|decoder_in_channels)$"
)
_NOT_WIDTH = re.compile(
    r"mask|mel|num_|pos_emb|bbox|vocab|group|state_dim|act_dim|action|conv_kernel|codebook_dim|kernel|linear_conv|label|dim_bbox|rope_dim|rotary|image_size"
)
_LAYERS = re.compile(
    r"(^|_)(num_hidden_layers|num_layers|n_layers?|layers|depth|hidden_layers|num_blocks|n_blocks|num_attention_layers|num_encoder_layers"
    r"|num_decoder_layers|num_hidden_groups_)$"
)
_NOT_LAYERS = re.compile(
    r"residual|add_layers|dense_layers|shared_layers|adapter|mlp|head|conv|lstm|postnet|predictor|projection|iou|max_depth|min_depth|proj_|mtp"
)
_HEADS = re.compile(
    r"(^|_)(num_attention_heads|num_key_value_heads|num_heads|n_heads?|attention_heads|num_kv_heads|n_head_kv)$"
)
_OF_A_HEAD = re.compile(r"(^|_)(head_dim|d_kv|kv_channels|dim_head|d_head|head_size)$")
_EXPERTS = re.compile(
    r"(^|_)(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_routed_experts|n_experts)$"
)
_WINDOWS = re.compile(
    r"^(sliding_window|sliding_window_size|local_attention|attention_window|attention_chunk_size|window)$"
)
_IMAGES = ("image_size", "img_size", "crop_size")
_FRAMES = re.compile(r"^(num_frames|frames_per_clip)$")
_CHUNKS = re.compile(r"^(mamba_|ssm_)?chunk_size$")
_TOKEN = re.compile(r"(token_id|token_index|_token_ids?)$")


def config_class(family: str) -> type[PreTrainedConfig]:
    """The class of a model type."""
    return CONFIG_MAPPING[family]  # type: ignore[no-any-return]


@dataclasses.dataclass(frozen=True)
class Size:
    """What widths are divided by, and whether there are fewer heads then, or narrower ones."""

    divisor: int
    fewer_heads: bool = False
    whole_images: bool = False

    def __str__(self) -> str:
        return f"1/{self.divisor}" + " of the heads" * self.fewer_heads + " with whole images" * self.whole_images


SIZES = (Size(8), Size(8, fewer_heads=True), Size(1), Size(1, whole_images=True))


def tiny(family: str, size: Size, how: str) -> PreTrainedConfig:
    """A config of a family."""
    config = _made(
        config_class(family), size, {}, {name: x for name, x in OVERRIDES.get(family, {}).items() if not name.isupper()}
    )
    config._attn_implementation = how
    return config


def _made(cls: type[PreTrainedConfig], size: Size, init: dict[str, Any], overrides: dict[str, Any]) -> PreTrainedConfig:
    defaults = {**_defaults(cls), **init}
    parts = _parts(cls)
    values: dict[str, Any] = {}
    for name, value in defaults.items():
        if name not in parts:
            changed = _smaller(name, value, defaults, size)
            if (changed is not None and changed != value) or name in init:
                values[name] = changed
    values.update(_tokens(defaults) | _stages(defaults))
    values.update(_kinds_of_layers(cls, values))
    for name, spec in parts.items():
        inner = {key.removeprefix(f"{name}."): x for key, x in overrides.items() if key.startswith(f"{name}.")}
        if name in overrides:
            continue
        if spec.optional and name in defaults and defaults[name] is None and not inner:
            continue
        part = spec.config_class
        if not (isinstance(part, type) and issubclass(part, PreTrainedConfig)):
            part = CONFIG_MAPPING[inner.pop("model_type", spec.model_type)]
        values[name] = _made(part, size, dict(spec.init_kwargs), inner)
    values.update({key: x for key, x in overrides.items() if "." not in key})
    return cls(**values)


def _parts(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    older = vars(cls).get("sub_configs", {})
    return cls.sub_configs_defaults or {
        name: configuration_utils.SubConfigSpec(part)
        for name, part in (older if isinstance(older, dict) else {}).items()
        if isinstance(part, type)
        and issubclass(part, PreTrainedConfig)
        and dataclasses.is_dataclass(part)
        and part.model_type
    }


def _defaults(cls: type[PreTrainedConfig]) -> dict[str, Any]:
    base = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    found = {}
    for field in dataclasses.fields(cls):
        if field.name in base and field.name not in ("pad_token_id", "bos_token_id", "eos_token_id"):
            continue
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def _smaller(name: str, value: Any, defaults: dict[str, Any], size: Size) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if name in _IMAGES and not size.whole_images:
        patch = defaults.get("patch_size")
        patch = patch[0] if isinstance(patch, (list, tuple)) else patch
        most = max(4 * patch, 64 // patch * patch) if isinstance(patch, int) else 64
        return type(value)(min(x, most) for x in value) if isinstance(value, (list, tuple)) else min(value, most)
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(x, int) and not isinstance(x, bool) for x in value)
    ):
        if _WIDTH.search(name) and not _NOT_WIDTH.search(name):
            return type(value)(_narrower(x, size.divisor) for x in value)
        if name in ("depths", "num_blocks", "layer_depths"):
            return type(value)(min(x, LAYERS) for x in value)
        if re.search(
            r"(^|_)(layer|block|attn|deepstack_visual)_?(indexes|indices|ids?)$|extract_layers|global_attn_indexes|cross_attention_layers",
            name,
        ):
            kept = type(value)(sorted({min(x, i) for i, x in enumerate(value[:LAYERS])}))
            return kept
        return value
    if not isinstance(value, int):
        return value
    if name in ("max_source_positions", "max_length"):
        return value if size.whole_images else min(value, 40)
    if _LAYERS.search(name) and not _NOT_LAYERS.search(name):
        return min(value, LAYERS)
    if "vocab_size" in name and "type" not in name:
        return min(value, VOCABULARY)
    if _WINDOWS.search(name):
        return min(value, WINDOW)
    if _EXPERTS.search(name):
        return min(value, 16)
    if _FRAMES.search(name):
        return min(value, 4)
    if _CHUNKS.search(name):
        return min(value, 16)
    if "groups" in name and value == defaults.get("hidden_size"):  # of a convolution of each channel alone
        return _narrower(value, size.divisor)
    if size.fewer_heads and _HEADS.search(name):
        return max(1, value // size.divisor)
    if _WIDTH.search(name) and not _NOT_WIDTH.search(name):
        return value if size.fewer_heads and _OF_A_HEAD.search(name) else _narrower(value, size.divisor)
    return value


def _stages(defaults: dict[str, Any]) -> dict[str, Any]:
    """A backbone that gives the results of layers 9 to 12 has four layers, and gives those of 1 to 4."""
    asked = defaults.get("out_indices") or defaults.get("out_features")
    if not isinstance(asked, (list, tuple)) or not asked:
        return {}
    numbers = [int(re.sub(r"\D", "", str(each)) or 0) for each in asked]
    layers = next((name for name in defaults if _LAYERS.search(name) and isinstance(defaults[name], int)), None)
    if layers is None or max(numbers) <= LAYERS:
        return {}
    kept = list(range(1, len(numbers) + 1))
    found: dict[str, Any] = {layers: max(LAYERS, len(numbers))}
    if defaults.get("out_indices"):
        found["out_indices"] = kept
    if defaults.get("out_features"):
        found["out_features"] = [f"stage{i}" for i in kept]
    return found


def _kinds_of_layers(cls: type[PreTrainedConfig], values: dict[str, Any]) -> dict[str, Any]:
    """One layer of each kind that the full config has."""
    fields = {field.name for field in dataclasses.fields(cls)}
    if "layer_types" not in fields or "num_hidden_layers" not in fields:
        return {}
    try:
        whole = cls()
    except Exception:
        return {}
    kinds = list(dict.fromkeys(whole.layer_types or ()))
    if len(kinds) < 2 and len(whole.layer_types or ()) == LAYERS:
        return {}
    kinds = [*kinds, *kinds[:1]] if len(kinds) == 1 else kinds
    return {"num_hidden_layers": len(kinds), "layer_types": kinds} if kinds else {}


def _narrower(value: int, divisor: int) -> int:
    return value // divisor if value >= 16 and value % divisor == 0 else value


def _tokens(given: dict[str, Any]) -> dict[str, Any]:
    """Special tokens that lie outside of the vocabulary go to its end, each to a place of its own."""
    size = given.get("vocab_size", VOCABULARY)
    size = min(size, VOCABULARY) if isinstance(size, int) else VOCABULARY
    free = itertools.chain(range(size - 1, 0, -1), itertools.repeat(0))
    found: dict[str, Any] = {}
    for name in sorted(filter(_TOKEN.search, given)):
        value = given[name]
        if isinstance(value, int) and not isinstance(value, bool) and value >= size:
            found[name] = next(free)
        elif isinstance(value, (list, tuple)) and any(isinstance(x, int) and x >= size for x in value):
            found[name] = type(value)([next(free)])
    return found
