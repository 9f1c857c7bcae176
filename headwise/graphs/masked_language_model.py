"""The graph of a masked language model: all logits at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headwise.graphs.graph import Graph, Value
from headwise.graphs.session import Sessions, replace_methods
from headwise.graphs.tokens import IDS, MASK, random_tokens, whole
from headwise.models.language_model import MaskedLanguageModel


def graphs(model: MaskedLanguageModel, real: list[Any] | None = None) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask → logits [batch, length, V], of each token. `real`: real inputs."""
    config = model.bert.config
    logits = Value("logits", torch.float32, ("batch", "length", config.vocab_size))
    examples = [*whole(real), *(each[:2] for each in random_tokens(config.vocab_size, config.max_positions))]
    return (Graph("model", model, (IDS, MASK), (logits,), examples, bool(real)),)


def run_on(model: MaskedLanguageModel, sessions: Sessions) -> None:
    """Let the graph compute what the model computes."""
    run = sessions["model"].giving("logits")

    def forward(ids: Tensor, real: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        logits = run(ids, torch.ones_like(ids) if real is None else real)[0]
        return logits if at is None else logits[at]

    replace_methods(model, forward=forward)
