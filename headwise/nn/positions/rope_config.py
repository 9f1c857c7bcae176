"""Reads the RoPE of a Hugging Face config, named as in transformers 5 (rope_parameters) or 4 (rope_scaling).

An option that is not supported is refused: if it were ignored, the RoPE would be computed wrongly."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from headwise.errors import CheckpointError
from headwise.nn.positions.rope_scaling import (
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    Proportional,
    RopeScaling,
    Yarn,
)

_SCALINGS: dict[str, type[Any]] = {
    **{"linear": Linear, "dynamic": DynamicNTK, "yarn": Yarn, "llama3": Llama3, "longrope": LongRope},
    "proportional": Proportional,
}
# The options that have another name there.
_THEIRS = {"original_length": "original_max_position_embeddings", "share": "partial_rotary_factor"}
_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}

# Models whose pairs are (0, 1), (2, 3) …, by model_type: their configs have no entry for it.
_INTERLEAVED = {
    *("codegen", "cohere", "cohere2", "deepseek_v2", "ernie4_5", "glm", "glm4", "gptj", "helium"),
    *("llama4_text", "roformer"),
}


def read(config: Any, *, head_dim: int | None, interleaved: bool | None, layer_type: str | None) -> dict[str, Any]:
    """Read the arguments of `Rope` from a config, by name. Raises CheckpointError for a RoPE that is not supported."""
    parameters = _parameters(config, layer_type)
    config = _of_layer(config, layer_type)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    scaling = _SCALINGS.get(kind)
    if scaling is None and kind != "default":
        kinds = ", ".join(("default", *_SCALINGS))
        raise CheckpointError(f"rope_type: expected one of {kinds}. Received: rope_type={kind!r}")
    options = [] if scaling is None else [field.name for field in fields(scaling)]
    known = _COMMON.union(_THEIRS.get(name, name) for name in options)
    unknown = sorted(name for name, value in parameters.items() if name not in known and value is not None)
    if unknown:
        raise CheckpointError(
            f"rope_parameters: expected for rope_type {kind!r} only {', '.join(sorted(known))}. "
            f"Received: also {', '.join(unknown)}"
        )
    head_dim = head_dim or head_dim_of(config, layer_type)
    return {
        "head_dim": head_dim,
        "base": float(entry(parameters, "rope_theta") or entry(config, "rope_theta", "rotary_emb_base") or 10000.0),
        "interleaved": _interleaved(config) if interleaved is None else interleaved,
        "rotary_dim": head_dim if kind == "proportional" else _rotary_dim(config, parameters, head_dim),
        "scaling": None if scaling is None else _scaling(config, kind, parameters),
    }


def _parameters(config: Any, layer_type: str | None) -> dict[str, Any]:
    parameters = entry(config, "rope_parameters") or _older_parameters(config)
    nested = {name: value for name, value in parameters.items() if isinstance(value, dict)}
    if not nested:
        return dict(parameters)
    if layer_type not in nested:
        raise CheckpointError(
            f"layer_type: this config has one RoPE for each type of layer, expected one of {', '.join(nested)}. "
            f"Received: layer_type={layer_type!r}"
        )
    return dict(nested[layer_type])


def _of_layer(config: Any, layer_type: str | None) -> Any:
    """Return the config of the layers of a type, where sizes depend on the layer (Gemma 4), or else the config."""
    if isinstance(config, dict):
        of_layers, types = config.get("per_layer_config"), config.get("layer_types") or []
        if not of_layers or layer_type not in types:
            return config
        place = types.index(layer_type)
        return {**config, **next((own for key, own in of_layers.items() if int(key) == place), {})}
    of_layers = getattr(config, "per_layer_config", None)
    return config if of_layers is None or layer_type is None else of_layers[layer_type]


def _older_parameters(config: Any) -> dict[str, Any]:
    """Read RoPE parameters of transformers 4: one set for each layer type if windows have their own base (Gemma 3)."""
    scaling = entry(config, "rope_scaling") or {}
    local = entry(config, "rope_local_base_freq", "local_rope_theta")
    if local is None:
        return scaling
    base = entry(config, "rope_theta", "global_rope_theta")
    return {"full_attention": {"rope_theta": base, **scaling}, "sliding_attention": {"rope_theta": local}}


def _scaling(config: Any, kind: str, parameters: dict[str, Any]) -> RopeScaling:
    options = {field.name: field for field in fields(_SCALINGS[kind])}
    named = {name: parameters.get(_THEIRS.get(name, name)) for name in options}
    given = {name: value for name, value in named.items() if value is not None}
    if "original_length" in options:
        given["original_length"] = _original_length(config, kind, parameters)
    longest = entry(config, "max_position_embeddings")
    if kind == "proportional":
        given.setdefault("share", 1.0)
    if kind in ("yarn", "longrope") and longest:
        given.setdefault("factor", longest / given["original_length"])
    for name, field in options.items():
        if field.default is MISSING and name not in given:
            raise CheckpointError(
                f"rope_parameters: expected {name} for rope_type {kind!r}. Received: a config without {name}"
            )
    scaling: RopeScaling = _SCALINGS[kind](**given)
    return scaling


def _original_length(config: Any, kind: str, parameters: dict[str, Any]) -> int:
    """Find `original_length`: for dynamic NTK the model's maximum length, else the original length, if there is one."""
    longest = entry(config, "max_position_embeddings", "n_positions")
    length = (
        longest
        if kind == "dynamic"
        else entry(config, "original_max_position_embeddings")
        or parameters.get("original_max_position_embeddings")
        or longest
    )
    if length is None:
        raise CheckpointError(
            f"max_position_embeddings: expected a number for rope_type {kind!r}. Received: max_position_embeddings=None"
        )
    return length


def head_dim_of(config: Any, layer_type: str | None = None) -> int:
    """Return the number of dimensions that are rotated. Raises CheckpointError if the config does not say it."""
    full = ("global_head_dim",) if layer_type == "full_attention" else ()
    head_dim = entry(config, "qk_rope_head_dim", *full, "head_dim")
    if head_dim:
        return head_dim
    model_dim, heads = entry(config, "hidden_size", "n_embd"), entry(config, "num_attention_heads", "n_head")
    if not model_dim or not heads:
        raise CheckpointError(
            "head_dim: expected it in the config, or hidden_size and num_attention_heads. "
            "Received: a config without them"
        )
    return model_dim // heads


def _rotary_dim(config: Any, parameters: dict[str, Any], head_dim: int) -> int:
    share = entry(parameters, "partial_rotary_factor")
    share = entry(config, "partial_rotary_factor", "rotary_pct") if share is None else share
    if share is not None:
        return int(head_dim * share)
    return entry(config, "rotary_dim") or head_dim


def _interleaved(config: Any) -> bool:
    said = entry(config, "rope_interleave")
    return entry(config, "model_type") in _INTERLEAVED if said is None else bool(said)


def entry(config: Any, *names: str) -> Any:
    """Return the first of the config's entries with these names that is not None; None if there is no such entry."""
    for name in names:
        value = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
        if value is not None:
            return value
    return None
