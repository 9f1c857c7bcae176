"""The graph of a text encoder: alone, with a head on its hidden states, or as a masked language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headwise.graphs.graph import Computation, Graph, Value
from headwise.graphs.session import Sessions, replace_methods
from headwise.graphs.tokens import IDS, MASK, TYPES, random_tokens, whole
from headwise.models.bert import Bert
from headwise.models.language_model import MaskedLanguageModel
from headwise.models.latent_encoder import LatentEncoder
from headwise.models.small_encoder import SmallEncoder
from headwise.models.span_reader import SpanReader
from headwise.models.text_classifier import TextClassifier

Model = Bert | SmallEncoder | LatentEncoder | TextClassifier | SpanReader | MaskedLanguageModel


def graphs(model: Model, real: list[Any] | None = None, longest: int | None = None) -> tuple[Graph, ...]:
    """Return the graph "model" of a text encoder, as a tuple with one element.

    Its inputs are input_ids, attention_mask and token_type_ids. Its outputs depend on the class of the model:

        an encoder             last_hidden_state [batch, length, M], and pooled [batch, M] if it has a pooler
        TextClassifier         logits [batch, C], a logit for each class, including pooling
        SpanReader             start_logits, end_logits [batch, length]: of each token as first and last of the answer
        MaskedLanguageModel    logits [batch, length, V], of each token; the input token_type_ids is missing

    Args:
        real: real inputs, as examples in addition to random inputs.
        longest: the maximum number of tokens of an input; None = the limit of the encoder.
    """
    module: nn.Module = model
    encoder: Any = model
    inputs: tuple[Value, ...] = (IDS, MASK, TYPES)
    types = 2
    axes: dict[str, tuple[int | str, ...]]
    if isinstance(model, TextClassifier):
        encoder, axes = model.encoder, {"logits": ("batch", model.head.out_features)}
    elif isinstance(model, SpanReader):
        encoder, axes = model.encoder, dict.fromkeys(("start_logits", "end_logits"), ("batch", "length"))
    elif isinstance(model, MaskedLanguageModel):
        encoder, inputs = model.bert, (IDS, MASK)
        axes = {"logits": ("batch", "length", model.bert.config.vocab_size)}
    else:
        rows: int | str = model.config.num_latents if isinstance(model, LatentEncoder) else "length"
        axes = {"last_hidden_state": ("batch", rows, model.config.dim)}
        types = model.config.num_token_types if isinstance(model, Bert) else 2
        if isinstance(model, Bert) and model.pooler is not None:
            module, axes["pooled"] = _WithPooled(model), ("batch", model.config.dim)
    if longest is None and isinstance(encoder, Bert):
        longest = encoder.config.max_positions
    random = (each[: len(inputs)] for each in random_tokens(encoder.config.vocab_size, longest, types))
    outputs = tuple(Value(name, torch.float32, of) for name, of in axes.items())
    return (Graph("model", module, inputs, outputs, [*whole(real), *random], bool(real)),)


def run_on(model: MaskedLanguageModel, sessions: Sessions) -> None:
    """Let the loaded graph do the computation of a masked language model: replace the model's `forward`."""
    run = sessions["model"].giving("logits")

    def forward(ids: Tensor, real: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        logits = run(ids, torch.ones_like(ids) if real is None else real)[0]
        return logits if at is None else logits[at]

    replace_methods(model, forward=forward)


class _WithPooled(Computation[Bert]):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.model(input_ids, attention_mask, token_type_ids)
        return hidden, self.model.pool(hidden)
