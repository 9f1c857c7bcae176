"""The graph of answer: for each token, its logits as the first and the last token of the answer."""

from __future__ import annotations

from typing import Any

import torch

from headwise.export.graph import Graph, Value
from headwise.export.graphs.rows import inputs_of
from headwise.export.graphs.tokens import IDS, MASK, TYPES, random_tokens, whole
from headwise.models.span_reader import SpanReader
from headwise.tasks.answer import Answer


def graphs(task: Answer, rows: Any = None) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask, token_type_ids → start_logits, end_logits [batch, length].

    The answer is the best span of the context, or [CLS], whose logits mean that there is no answer.
    """
    real = [] if rows is None else inputs_of(task.model, lambda: task.predict(rows))
    return (graph(task.model, real, task.max_length),)


def graph(model: SpanReader, real: list[Any], longest: int | None) -> Graph:
    """The graph of any `SpanReader`; `longest` is its maximum number of tokens."""
    outputs = tuple(Value(name, torch.float32, ("batch", "length")) for name in ("start_logits", "end_logits"))
    examples = [*whole(real), *random_tokens(model.encoder.config.vocab_size, longest)]
    return Graph("model", model, (IDS, MASK, TYPES), outputs, examples)
