"""The graph of a span reader: for each token, its logits as the first and the last token of the answer."""

from __future__ import annotations

from typing import Any

import torch

from headwise.graphs.encoders import longest_of
from headwise.graphs.graph import Graph, Value
from headwise.graphs.tokens import IDS, MASK, TYPES, random_tokens, whole
from headwise.models.span_reader import SpanReader


def graphs(model: SpanReader, real: list[Any] | None = None, longest: int | None = None) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask, token_type_ids → start_logits, end_logits [batch, length].

    Args:
        real, longest: as for a text classifier.
    """
    outputs = tuple(Value(name, torch.float32, ("batch", "length")) for name in ("start_logits", "end_logits"))
    examples = random_tokens(model.encoder.config.vocab_size, longest or longest_of(model.encoder))
    return (Graph("model", model, (IDS, MASK, TYPES), outputs, [*whole(real), *examples], bool(real)),)
