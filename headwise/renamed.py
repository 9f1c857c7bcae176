"""Names in files of version 0.1.0 that have other names today: names of options and of the sizes of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NAMES = {
    "hidden_size": "dim",
    "width": "dim",
    "intermediate_size": "ffn_dim",
    "shared_width": "shared_dim",
    "vocabulary": "vocab_size",
}
MODELS = ("bert", "encoder", "model", "text")  # entries that may hold the sizes of a model


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries under today's names, also in entries that hold the sizes of a model."""
    return {
        NAMES.get(name, name): renamed(value) if name in MODELS and isinstance(value, dict) else value
        for name, value in values.items()
    }
