"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): a BERT without token types and pooler.

In training, transformers has no dropout after the attention's output. Here `dropout` is applied there, as in BERT.
"""

from collections.abc import Mapping
from typing import Any

from headwise.models.families.family import Family


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"num_layers": config.get("n_layers", 6), "num_token_types": 0, "layer_norm_eps": 1e-12}


FAMILY = Family(
    name="distilbert",
    model_types=("distilbert",),
    prefix="distilbert.",
    settings={
        "vocab_size": "vocab_size",
        "dim": "dim",
        "num_heads": "n_heads",
        "ffn_dim": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "hidden_act": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    tensors={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "attention.qkv": "attention.q_lin attention.k_lin attention.v_lin",
        "attention.out": "attention.out_lin",
        "attention_norm": "sa_layer_norm",
        "mlp.up": "ffn.lin1",
        "mlp.down": "ffn.lin2",
        "mlp_norm": "output_layer_norm",
    },
    own=_own,
    layer="transformer.layer.",
)
