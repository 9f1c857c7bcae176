"""The graph of a causal language model: "decoder", called once for the text and once for each new token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.export.graph import Graph, Value
from headwise.export.graphs.past import Past, pairs, values_of
from headwise.models.language_model import CausalLanguageModel
from headwise.tasks.language import Language
from headwise.tasks.text.causal_language import Causal
from headwise.tasks.text.padding import padded

TEXTS = 4  # most texts used as examples


@torch.no_grad()
def graphs(task: Language, texts: Sequence[str] = ()) -> tuple[Graph, ...]:
    """The graph.

        decoder: ids, past_keys_0, past_values_0 … → logits, keys_0, values_0 …

    It reads [batch, length] tokens after the tokens of the past. At first the past has no tokens; the returned keys and
    values are the past of the next step. Padding must be on the right, where no token attends to it.

    Args:
        task: trained, on the CPU, with the objective "causal".
        texts: real texts for the examples. Random ids are used as well.

    Raises:
        ArgumentError: the model has another objective.
    """
    if not isinstance(task.objective, Causal):
        raise ArgumentError("expected a language model with objective=causal. Received: a masked one")
    model = cast(CausalLanguageModel, task.model.eval())
    module = DecoderGraph(model)
    config = model.config
    sizes = (config.num_layers, config.num_heads)
    width = config.dim // config.num_heads
    inputs = (Value("ids", torch.int64, ("batch", "length")), *values_of("past_", *sizes, "past", width))
    outputs = (
        Value("logits", torch.float32, ("batch", "length", config.vocab_size)),
        *values_of("", *sizes, "present", width),
    )
    vocabulary, block = task.objective.vocabulary, task.options.block
    rows = [row for row in vocabulary.encode(list(texts)[:TEXTS], block) if len(row) >= 4]  # two tokens, and two more
    drawn = torch.Generator().manual_seed(0)
    random = torch.randint(len(vocabulary), (3, min(9, block)), generator=drawn)
    batches = [padded(rows if len(rows) > 1 else rows * 2, vocabulary.pad)] if rows else []
    empty = [torch.empty(1, config.num_heads, 0, width)] * 2 * config.num_layers
    examples = [step for ids in (*batches, random, random[:1]) for step in _steps(module, ids, empty)]
    return (Graph("decoder", module, inputs, outputs, examples),)


class DecoderGraph(nn.Module):
    """Logits of the next token after each token, and the keys and values of all tokens so far."""

    def __init__(self, model: CausalLanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        past = Past(pairs(given))
        return (self.model(ids, cache=past), *past.present)


def _steps(module: DecoderGraph, ids: Tensor, empty: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Examples of steps: several tokens at once after a past, and a single token."""
    size = len(ids)
    none = [each.expand(size, -1, -1, -1) for each in empty]
    half = max(ids.shape[1] // 2, 1)
    _, *past = module(ids[:, :half], *none)
    _, *before_last = module(ids[:, :-1], *none)
    return [(ids[:, half:], *past), (ids, *none), (ids[:, -1:], *before_last)]
