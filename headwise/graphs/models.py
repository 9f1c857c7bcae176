"""The models that have graphs: a dict from the class of a model to the function that makes its graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from headwise import models
from headwise.graphs import (
    causal_language_model,
    encoder_decoder,
    image_text,
    patch_forecaster,
    text_encoders,
)
from headwise.graphs.graph import Graph

MODELS: dict[type[nn.Module], Callable[[Any], tuple[Graph, ...]]] = {
    models.Bert: text_encoders.graphs,
    models.SmallEncoder: text_encoders.graphs,
    models.LatentEncoder: text_encoders.graphs,
    models.TextClassifier: text_encoders.graphs,
    models.SpanReader: text_encoders.graphs,
    models.MaskedLanguageModel: text_encoders.graphs,
    models.CausalLanguageModel: causal_language_model.graphs,
    models.EncoderDecoder: encoder_decoder.graphs,
    models.PatchForecaster: patch_forecaster.graphs,
    models.CausalPatchForecaster: patch_forecaster.graphs,
    models.ImageText: image_text.graphs,
}
