"""The request to the process that writes a SavedModel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headwise import models
from headwise import nn as modules
from headwise.graphs.graph import Value
from headwise.masks import Mask

# A model -> the name of its twin in `twins.py`, which imports Keras.
TWINS: dict[type[nn.Module], str] = {
    models.Bert: "BertTwin",
    models.SmallEncoder: "SmallTwin",
    models.LatentEncoder: "LatentTwin",
    models.TextClassifier: "ClassifierTwin",
    models.SpanReader: "SpanTwin",
    models.MaskedLanguageModel: "MaskedTwin",
    models.PatchForecaster: "ForecasterTwin",
    models.CausalPatchForecaster: "CausalForecasterTwin",
    modules.Encoder: "AttentionTwin",
    modules.EncoderLayer: "AttentionTwin",
    modules.LatentAttention: "AttentionTwin",
    modules.MultiHeadAttention: "AttentionTwin",
    modules.MultiHeadLatentAttention: "AttentionTwin",
}


@dataclass(frozen=True)
class Request:
    """The SavedModel to write.

    Args:
        model: a model with a twin.
        mask: the mask of a module of `headwise.nn`.
        module: the module of the graph, with the same inputs and outputs.
        inputs, outputs: their names in the export.
        example: example inputs.
        labels: the labels of a classifier, in the order of its logits, for its second signature "classify".
        folder: the folder to write, whose name is the version number for TensorFlow Serving.
        batches: inputs for measuring times, by batch size; {} = no measurement.
    """

    model: nn.Module
    mask: Mask | None
    module: nn.Module
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    example: tuple[Tensor, ...]
    labels: tuple[str, ...]
    folder: str
    batches: dict[int, tuple[Tensor, ...]]
