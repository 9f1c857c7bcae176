"""The graph of classify: tokens -> a logit for each label, including pooling."""

from __future__ import annotations

from typing import Any

import torch

from headwise.export.graph import Graph, Value
from headwise.export.graphs.rows import inputs_of
from headwise.export.graphs.tokens import IDS, MASK, TYPES, random_tokens, whole
from headwise.models.text_classifier import TextClassifier
from headwise.tasks.classify import Classify


def graphs(task: Classify, rows: Any = None) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask, token_type_ids → logits [batch, C], in the order of `task.labels`."""
    real = [] if rows is None else inputs_of(task.model, lambda: task.predict(rows))
    return (graph(task.model, real, task.max_length),)


def graph(model: TextClassifier, real: list[Any], longest: int | None) -> Graph:
    """The graph of any `TextClassifier`; `longest` is its maximum number of tokens."""
    logits = Value("logits", torch.float32, ("batch", model.head.out_features))
    config = model.encoder.config
    examples = [*whole(real), *random_tokens(config.vocab_size, longest)]
    return Graph("model", model, (IDS, MASK, TYPES), (logits,), examples)
