from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class EncoderConfig:
    vocab_size: int = 100
    hidden_size: int = 64
    num_attention_heads: int = 4
    num_hidden_layers: int = 2
    max_position_embeddings: int = 128
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0


class MaskMixin:
    def get_extended_attention_mask(self, attention_mask: torch.Tensor) -> torch.Tensor:
        """[batch, seq] (1 = token, 0 = padding) -> [batch, 1, 1, seq] for the attention."""
        if attention_mask.dim() != 2:
            raise ValueError(f"Wrong shape for attention_mask (shape {tuple(attention_mask.shape)})")
        return (attention_mask == 0)[:, None, None, :]


class EncoderLayer(nn.Module):
    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.num_heads = config.num_attention_heads
        d = config.hidden_size
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.dense = nn.Linear(d, d)
        self.attention_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(d, 4 * d)
        self.output = nn.Linear(4 * d, d)
        self.output_norm = nn.LayerNorm(d, eps=config.layer_norm_eps)

    def forward(self, hidden_states, attention_mask=None):
        b, t, d = hidden_states.shape

        def split(x):
            return x.view(b, t, self.num_heads, d // self.num_heads).transpose(1, 2)

        context = F.scaled_dot_product_attention(
            split(self.query(hidden_states)),
            split(self.key(hidden_states)),
            split(self.value(hidden_states)),
            attn_mask=attention_mask,
        )
        context = context.transpose(1, 2).reshape(b, t, d)
        hidden_states = self.attention_norm(hidden_states + self.dense(context))
        return self.output_norm(hidden_states + self.output(F.gelu(self.intermediate(hidden_states))))


class SdpaTextEncoder(nn.Module, MaskMixin):
    def __init__(self, config: Optional[EncoderConfig] = None):
        super().__init__()
        config = config or EncoderConfig()
        self.config = config
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layer = nn.ModuleList([EncoderLayer(config) for _ in range(config.num_hidden_layers)])

    def forward(self, input_ids: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        position_ids = torch.arange(input_ids.size(1), device=input_ids.device)
        h = self.norm(self.word_embeddings(input_ids) + self.position_embeddings(position_ids))
        mask = None
        if attention_mask is not None:
            mask = self.get_extended_attention_mask(attention_mask)
        for layer in self.layer:
            h = layer(h, mask)
        return h
