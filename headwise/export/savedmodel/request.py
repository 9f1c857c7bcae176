"""What one process asks of another: which model is to be written as a SavedModel, and how."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headwise import models
from headwise import nn as modules
from headwise.export.graph import Value
from headwise.masks import Mask

# Models that `twins.py`, which imports Keras, has a twin of.
WITH_TWIN: tuple[type[nn.Module], ...] = (
    models.Bert,
    models.SmallEncoder,
    models.LatentEncoder,
    models.TextClassifier,
    models.SpanReader,
    models.MaskedLanguageModel,
    models.PatchForecaster,
    models.CausalPatchForecaster,
    modules.Encoder,
    modules.EncoderLayer,
    modules.LatentAttention,
    modules.MultiHeadAttention,
    modules.MultiHeadLatentAttention,
)


@dataclass(frozen=True)
class Request:
    """What is to be written.

    Args:
        model: one that has a twin.
        mask: of a module of `headwise.nn`.
        module: of the graph: takes and gives the same tensors.
        inputs, outputs: as they are to be called.
        example: of the inputs.
        labels: of a classifier, in the order of its logits: it gets a second signature, with these and probabilities.
        folder: to write, as TensorFlow Serving has them: the one whose name is a number.
        batches: inputs to take the time of, by the size of their batch; none = no time is taken.
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
