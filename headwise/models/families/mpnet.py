"""MPNet (Song et al. 2020, arXiv:2004.09297): a BERT without token types, and with T5's relative positions added."""

from collections.abc import Mapping
from typing import Any

from headwise.models.families.bert import SETTINGS, TENSORS
from headwise.models.families.family import Family
from headwise.models.families.roberta import counted

PADDING = 1  # the id of the padding token; transformers always uses this id


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    buckets = config.get("relative_attention_num_buckets", 32)
    return {"num_token_types": 0, "relative_buckets": buckets, **counted(config, PADDING)}


FAMILY = Family(
    name="mpnet",
    model_types=("mpnet",),
    prefix="mpnet.",
    settings={name: theirs for name, theirs in SETTINGS.items() if name != "num_token_types"},
    tensors={name: theirs for name, theirs in TENSORS.items() if name != "embeddings.token_type"}
    | {
        "relative.relative_attention_bias": "encoder.relative_attention_bias",
        "attention.qkv": "attention.attn.q attention.attn.k attention.attn.v",
        "attention.out": "attention.attn.o",
        "attention_norm": "attention.LayerNorm",
    },
    own=_own,
)
