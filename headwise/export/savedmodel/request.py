"""The request that is sent to the process that writes a SavedModel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from headwise import models
from headwise import nn as modules
from headwise.graphs.graph import Graph
from headwise.masks import Mask

# The class of a model -> the name of its Keras twin in `twins.py`, which imports Keras.
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
    """A request to write a model as a SavedModel.

    Args:
        model: a model that has a Keras twin.
        mask: the mask of a module of `headwise.nn`; None = all pairs are allowed.
        graph: the graph of the model.
        labels: the labels of a classifier, in the order of its logits, for its second signature "classify".
        folder: the folder to write, whose name is the version number for TensorFlow Serving.
        speed: whether to measure the time of calls.
    """

    model: nn.Module
    mask: Mask | None
    graph: Graph
    labels: tuple[str, ...]
    folder: str
    speed: bool
