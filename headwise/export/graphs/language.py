"""The graph of a masked language model: all logits at once. `causal.py` has the graph of a causal one."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from headwise.export.graph import Graph, Value
from headwise.export.graphs.tokens import IDS, MASK, random_tokens, whole
from headwise.models.language_model import MaskedLanguageModel
from headwise.tasks.language import Language
from headwise.tasks.text.causal_language import Causal


def graphs(task: Language, rows: Any = None) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask → logits [batch, length, V], of each token."""
    alone = isinstance(rows, str) and not Path(rows).is_file()
    data = None if rows is None else task.read([rows] if alone else rows, task.options)
    if isinstance(task.objective, Causal):
        from headwise.export.graphs import causal

        return causal.graphs(task, () if data is None else data.columns["text"])
    real = [] if data is None else _batch(task, task.encode(data))
    return (graph(cast(MaskedLanguageModel, task.model), real),)


def graph(model: MaskedLanguageModel, real: list[Any]) -> Graph:
    """The graph of any `MaskedLanguageModel`."""
    config = model.bert.config
    logits = Value("logits", torch.float32, ("batch", "length", config.vocab_size))
    examples = [*whole(real), *(each[:2] for each in random_tokens(config.vocab_size, config.max_positions))]
    return Graph("model", model, (IDS, MASK), (logits,), examples)


def _batch(task: Language, pieces: list[list[int]]) -> list[tuple[Tensor, Tensor]]:
    batch = task.collate(pieces[: task.options.batch_size])
    return [(batch["input_ids"], batch["real"])]
