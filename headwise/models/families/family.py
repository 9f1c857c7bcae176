"""`Family`: how checkpoints of one family of encoders describe a `headwise.Bert` and name its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headwise.errors import ArgumentError, CheckpointError
from headwise.models.families.config import BertConfig

# Buffers in checkpoints of older versions of transformers: 0, 1, 2 …, zeros, frequencies. They are not learned.
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")


@dataclass(frozen=True)
class Family:
    """One family of encoders: how its checkpoints name options and tensors.

    Args:
        name: the value of `BertConfig.family`.
        model_types: the values of model_type in config.json that mean this family.
        prefix: the prefix of the encoder's tensors in a checkpoint of a model with a head.
        settings: a dict from the name of an option of `BertConfig` to the name of its entry in config.json.
        tensors: a dict from the name of our module to the name in checkpoints, both without the layer's prefix. A name
            may be several names, separated by spaces: then the rows of our tensors, concatenated, are the rows of the
            checkpoint's tensors, concatenated.
        own: a function that takes config.json and returns further options. It raises CheckpointError for options that
            are not supported here.
        layer: the prefix of a layer's tensors in checkpoints, before the layer's number.
    """

    name: str
    model_types: tuple[str, ...]
    prefix: str
    settings: Mapping[str, str]
    tensors: Mapping[str, str]
    own: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    layer: str = "encoder.layer."

    def config(self, config: Mapping[str, Any]) -> BertConfig:
        """Make the `BertConfig` that a checkpoint's config.json describes."""
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
        """Select the tensors of the encoder and pooler, without the prefix, under the names in current checkpoints."""
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
        """Match our parameters with the tensors of a checkpoint: return pairs (our names, names in the checkpoint).

        Our parameters of a pair, concatenated along their rows, equal the checkpoint's tensors, concatenated. Example:
        `layers.3.mlp.up.weight` is `encoder.layer.3.intermediate.dense.weight` in BERT's checkpoints.
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
