"""The families of encoders that `headwise.Bert` reads: one file each, with the parameter names in its checkpoints.

To add a family, add its file, and its entry in `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headwise.errors import CheckpointError
from headwise.models.families import bert, distilbert, electra, modernbert, mpnet, roberta
from headwise.models.families.config import ACTIVATIONS, BertConfig, ModernLayers
from headwise.models.families.family import Family

FAMILIES: dict[str, Family] = {
    each.FAMILY.name: each.FAMILY for each in (bert, roberta, distilbert, electra, mpnet, modernbert)
}


def family_of(config: Mapping[str, Any]) -> Family | None:
    """Find the family of a checkpoint, by the entry model_type of its config.json; None = an unknown family."""
    model_type = config.get("model_type", "bert")  # configs of 2018 lack it
    return next((each for each in FAMILIES.values() if model_type in each.model_types), None)


def read_config(config: Mapping[str, Any]) -> BertConfig:
    """Make the `BertConfig` that a Hugging Face config.json describes. Missing entries get the values of BERT-base.

    Raises:
        CheckpointError: the family is unknown, or the architecture cannot be computed here.
    """
    family = family_of(config)
    if family is None:
        known = ", ".join(name for each in FAMILIES.values() for name in each.model_types)
        raise CheckpointError(
            f"model_type: expected a BERT encoder or one of its kind ({known}). Received: "
            f"model_type={config.get('model_type')!r}"
        )
    return family.config(config)


__all__ = ["ACTIVATIONS", "FAMILIES", "BertConfig", "Family", "ModernLayers", "family_of", "read_config"]


def __dir__() -> list[str]:
    return __all__
