"""The graph of a text classifier: tokens -> a logit for each class, including pooling."""

from __future__ import annotations

from typing import Any

import torch

from headwise.graphs.encoders import longest_of
from headwise.graphs.graph import Graph, Value
from headwise.graphs.tokens import IDS, MASK, TYPES, random_tokens, whole
from headwise.models.text_classifier import TextClassifier


def graphs(model: TextClassifier, real: list[Any] | None = None, longest: int | None = None) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask, token_type_ids → logits [batch, C].

    Args:
        real: real inputs, in addition to random ones.
        longest: the most tokens of an input; None = the limit of the encoder.
    """
    logits = Value("logits", torch.float32, ("batch", model.head.out_features))
    examples = random_tokens(model.encoder.config.vocab_size, longest or longest_of(model.encoder))
    return (Graph("model", model, (IDS, MASK, TYPES), (logits,), [*whole(real), *examples], bool(real)),)
