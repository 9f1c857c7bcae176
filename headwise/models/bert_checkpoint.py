"""Writes a `Bert` as a Hugging Face checkpoint: config.json and model.safetensors. `Bert.from_pretrained` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from headwise.files import replacing
from headwise.models.bert import Bert
from headwise.models.families.bert import FAMILY
from headwise.models.families.tensors import named


def save_checkpoint(bert: Bert, folder: Path, *, head: Mapping[str, Tensor] | None = None, pad: int = 0) -> None:
    """Write config.json and model.safetensors into a folder, which is created if it is missing. OSError passes through.

    Args:
        head: the parameters of a head, under their names in such a checkpoint ("cls.predictions.bias"). With a head the
            checkpoint is a model that fills masked tokens (BertForMaskedLM).
        pad: the id of the padding token.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "" if head is None else "bert."
    tensors = {} if head is None else {name: tensor.detach().cpu().contiguous() for name, tensor in head.items()}
    tensors |= {f"{prefix}{name}": tensor for name, tensor in named(FAMILY, bert.named_parameters()).items()}
    config = {
        "architectures": ["BertModel" if head is None else "BertForMaskedLM"],
        "model_type": "bert",
        "pad_token_id": pad,
        **{theirs: getattr(bert.config, ours) for ours, theirs in FAMILY.settings.items()},
    }
    with replacing(folder / "config.json") as part:
        part.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    with replacing(folder / "model.safetensors") as part:
        part.write_bytes(save(tensors, metadata={"format": "pt"}))
