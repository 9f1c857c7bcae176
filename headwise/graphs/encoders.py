"""The graph of an encoder of text without a head: tokens -> their states."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.graphs.graph import Computation, Graph, Value
from headwise.graphs.tokens import IDS, MASK, TYPES, random_tokens
from headwise.models.bert import Bert
from headwise.models.latent_encoder import LatentEncoder
from headwise.models.small_encoder import SmallEncoder


def graphs(model: Bert | SmallEncoder | LatentEncoder) -> tuple[Graph, ...]:
    """model: input_ids, attention_mask, token_type_ids → last_hidden_state, and pooled if it has a pooler."""
    module: nn.Module = model
    width = model.config.dim
    rows: int | str = model.config.num_latents if isinstance(model, LatentEncoder) else "length"
    outputs = [Value("last_hidden_state", torch.float32, ("batch", rows, width))]
    types = model.config.num_token_types if isinstance(model, Bert) else 2
    if isinstance(model, Bert) and model.pooler is not None:
        module = _WithPooled(model)
        outputs.append(Value("pooled", torch.float32, ("batch", width)))
    examples = random_tokens(model.config.vocab_size, longest_of(model), types)
    return (Graph("model", module, (IDS, MASK, TYPES), tuple(outputs), examples),)


def longest_of(encoder: nn.Module) -> int | None:
    """The most tokens that an encoder can read; None = no limit."""
    return encoder.config.max_positions if isinstance(encoder, Bert) else None


class _WithPooled(Computation[Bert]):
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.model(input_ids, attention_mask, token_type_ids)
        return hidden, self.model.pool(hidden)
