"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): a BERT whose embeddings may be narrower, and that has no pooler."""

from collections.abc import Mapping
from typing import Any

from headwise.models.families.bert import SETTINGS, TENSORS
from headwise.models.families.family import Family


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    width = config.get("embedding_size", 128)
    return {"embedding_dim": None if width == config.get("hidden_size", 256) else width}


FAMILY = Family(
    name="electra",
    model_types=("electra",),
    prefix="electra.",
    settings=SETTINGS,
    tensors={name: theirs for name, theirs in TENSORS.items() if name != "pooler"}
    | {"embeddings.project": "embeddings_project"},
    own=_own,
)
