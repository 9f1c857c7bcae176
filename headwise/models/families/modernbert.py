"""ModernBERT (Warner et al. 2024, arXiv:2412.13663).

In training `dropout` is applied to the embeddings and to the output of each branch. The checkpoints had no dropout.
"""

from collections.abc import Mapping
from typing import Any

from headwise.errors import CheckpointError
from headwise.models.families.config import ModernLayers
from headwise.models.families.family import Family

_LOCAL, _GLOBAL = "sliding_attention", "full_attention"


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    biases = {name: bool(config.get(name, False)) for name in ("attention_bias", "mlp_bias", "norm_bias")}
    if len(set(biases.values())) > 1:
        said = ", ".join(f"{name}={value}" for name, value in biases.items())
        raise CheckpointError(f"config.json: expected biases in all linear maps and norms or in none. Received: {said}")
    modern = ModernLayers(
        local_layers=_local_layers(config),
        window=int(config.get("local_attention", 128)) // 2,
        rope_base=_base(config, _GLOBAL, config.get("global_rope_theta", 160_000.0)),
        local_rope_base=_base(config, _LOCAL, config.get("local_rope_theta", 10_000.0)),
        bias=biases["norm_bias"],
    )
    return {"num_token_types": 0, "layer_norm_eps": config.get("norm_eps", 1e-5), "pooler": False, "modern": modern}


def _local_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the numbers of the local layers: the config's list, or in older configs all but every third layer."""
    types = config.get("layer_types")
    if types is None:
        every, count = config.get("global_attn_every_n_layers", 3), config.get("num_hidden_layers", 22)
        return tuple(number for number in range(count) if number % every)
    if unknown := set(types) - {_LOCAL, _GLOBAL}:
        raise CheckpointError(f"layer_types: expected {_LOCAL} and {_GLOBAL}. Received: {min(unknown)!r}")
    return tuple(number for number, each in enumerate(types) if each == _LOCAL)


def _base(config: Mapping[str, Any], kind: str, older: float) -> float:
    """Return the base of RoPE's frequencies in layers of type `kind`; `older` for a config of transformers 4."""
    given = (config.get("rope_parameters") or {}).get(kind) or {}
    scaling = given.get("rope_type") or (config.get("rope_scaling") or {}).get("rope_type") or "default"
    if scaling != "default":
        raise CheckpointError(f"rope_type: expected RoPE without scaling in ModernBERT. Received: {scaling!r}")
    return float(given.get("rope_theta", older))


FAMILY = Family(
    name="modernbert",
    model_types=("modernbert",),
    prefix="model.",
    settings={
        "vocab_size": "vocab_size",
        "dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "hidden_act": "hidden_activation",
        "dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
    },
    tensors={
        "embeddings.word": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "attention_norm": "attn_norm",
        "attention.qkv": "attn.Wqkv",
        "attention.out": "attn.Wo",
        "mlp_norm": "mlp_norm",
        "mlp.gate mlp.up": "mlp.Wi",
        "mlp.down": "mlp.Wo",
        "final_norm": "final_norm",
    },
    own=_own,
    layer="layers.",
)
