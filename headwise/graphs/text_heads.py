"""The graph of an encoder of text with a head: a classifier, or a reader that finds answers."""

from __future__ import annotations

from typing import Any

import torch

from headwise.graphs.encoders import longest_of
from headwise.graphs.graph import Graph, Value
from headwise.graphs.tokens import IDS, MASK, TYPES, random_tokens, whole
from headwise.models.span_reader import SpanReader
from headwise.models.text_classifier import TextClassifier


def graphs(
    model: TextClassifier | SpanReader, real: list[Any] | None = None, longest: int | None = None
) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask, token_type_ids → logits [batch, C], a logit for each class, including pooling.

    Of a span reader → start_logits, end_logits [batch, length]: of each token as the first and the last of the answer.

    Args:
        real: real inputs, in addition to random ones.
        longest: the most tokens of an input; None = the limit of the encoder.
    """
    if isinstance(model, SpanReader):
        outputs = tuple(Value(name, torch.float32, ("batch", "length")) for name in ("start_logits", "end_logits"))
    else:
        outputs = (Value("logits", torch.float32, ("batch", model.head.out_features)),)
    examples = random_tokens(model.encoder.config.vocab_size, longest or longest_of(model.encoder))
    return (Graph("model", model, (IDS, MASK, TYPES), outputs, [*whole(real), *examples], bool(real)),)
