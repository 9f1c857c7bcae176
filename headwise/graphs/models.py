"""The models that have graphs, by their classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from headwise import models
from headwise.graphs import (
    causal_language_model,
    encoder_decoder,
    encoders,
    image_text,
    masked_language_model,
    patch_forecaster,
    text_heads,
)
from headwise.graphs.graph import Graph

MODELS: dict[type[nn.Module], Callable[[Any], tuple[Graph, ...]]] = {
    models.Bert: encoders.graphs,
    models.SmallEncoder: encoders.graphs,
    models.LatentEncoder: encoders.graphs,
    models.TextClassifier: text_heads.graphs,
    models.SpanReader: text_heads.graphs,
    models.MaskedLanguageModel: masked_language_model.graphs,
    models.CausalLanguageModel: causal_language_model.graphs,
    models.EncoderDecoder: encoder_decoder.graphs,
    models.PatchForecaster: patch_forecaster.graphs,
    models.CausalPatchForecaster: patch_forecaster.graphs,
    models.ImageText: image_text.graphs,
}
