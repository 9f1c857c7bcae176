"""`Family`: how checkpoints of one family of encoders describe a `headwise.Bert` and name its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headwise.errors import ArgumentError, CheckpointError
from headwise.models.families.config import BertConfig

# Buffers that older versions of transformers saved: 0, 1, 2 …, zeros, frequencies. They are not learned.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")


@dataclass(frozen=True)
class Family:
    """One family of encoders, and how its checkpoints differ.

    Args:
        name: the value of `BertConfig.family`.
        model_types: the values of model_type in config.json that mean this family.
        prefix: the prefix of the encoder's tensors in a checkpoint of a model with a head.
        settings: the name of an option of `BertConfig` -> the name of the entry in config.json.
        tensors: the name of our module -> the name in checkpoints, both without the layer's prefix. Either may be
            several names, separated by spaces: the concatenated rows of ours are then the concatenated rows of theirs.
        own: a function that returns further options, from config.json. It raises CheckpointError for options that are
            not supported here.
        layer: the prefix of a layer's tensors in checkpoints, before its number.
    """

    name: str
    model_types: tuple[str, ...]
    prefix: str
    settings: Mapping[str, str]
    tensors: Mapping[str, str]
    own: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    layer: str = "encoder.layer."

    def config(self, config: Mapping[str, Any]) -> BertConfig:
        """The `BertConfig` that a checkpoint's config.json describes."""
        for flag in ("is_decoder", "add_cross_attention"):
            if config.get(flag):
                raise CheckpointError(f"{flag}: expected an encoder, not a decoder. Received: {flag}=true")
        if (positions := config.get("position_embedding_type", "absolute")) != "absolute":
            raise CheckpointError(
                f"position_embedding_type: expected absolute positions. Received: position_embedding_type={positions!r}"
            )
        given = {ours: config[theirs] for ours, theirs in self.settings.items() if theirs in config}
        try:
            return BertConfig(family=self.name, **{**given, **self.own(config)})
        except ArgumentError as cause:
            raise CheckpointError(f"config.json: {cause}") from cause

    def encoder_tensors(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the encoder and pooler, without the prefix, under the names in current checkpoints."""
        prefix = self.prefix if any(name.startswith(self.prefix) for name in tensors) else ""
        named = {
            # Checkpoints converted from TensorFlow call the scale and shift of a LayerNorm gamma and beta.
            name.removeprefix(prefix)
            .replace("LayerNorm.gamma", "LayerNorm.weight")
            .replace("LayerNorm.beta", "LayerNorm.bias"): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        roots = {self.layer.split(".")[0]} | {
            name.split(".")[0] for each in self.tensors.values() for name in each.split()
        }
        return {
            name: tensor
            for name, tensor in named.items()
            if name.split(".")[0] in roots and not name.endswith(_BUFFERS)
        }

    def places(self, parameters: Iterable[str]) -> list[tuple[list[str], list[str]]]:
        """For each group of parameters: (our names, their names), equal when concatenated along their rows.

        Example: `layers.3.mlp.up.weight` is `encoder.layer.3.intermediate.dense.weight` in BERT's checkpoints.
        """
        found: dict[str, tuple[list[str], list[str]]] = {}
        for ours in parameters:
            module, _, parameter = ours.rpartition(".")
            before = begins = ""
            if module.startswith("layers."):
                _, number, module = module.split(".", 2)
                before, begins = f"layers.{number}.", f"{self.layer}{number}."
            together = next(each for each in self.tensors if module in each.split())
            theirs = [f"{begins}{name}.{parameter}" for name in self.tensors[together].split()]
            found[theirs[0]] = [f"{before}{name}.{parameter}" for name in together.split()], theirs
        return list(found.values())
