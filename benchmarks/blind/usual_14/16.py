from dataclasses import dataclass
from typing import Optional

import torch
import torch.nn as nn


@dataclass
class MiniBertConfig:
    vocab_size: int = 100
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 128
    max_position_embeddings: int = 64
    type_vocab_size: int = 2
    pad_token_id: int = 0
    layer_norm_eps: float = 1e-12
    dropout: float = 0.1


class BertSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.head_size = config.hidden_size // config.num_attention_heads
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.head_size**0.5
        scores = scores + attention_mask
        probs = self.dropout(scores.softmax(dim=-1))
        return torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)


class BertLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        h = config.hidden_size
        self.attention = BertSelfAttention(config)
        self.attn_dense = nn.Linear(h, h)
        self.attn_norm = nn.LayerNorm(h, eps=config.layer_norm_eps)
        self.inter = nn.Linear(h, config.intermediate_size)
        self.out = nn.Linear(config.intermediate_size, h)
        self.out_norm = nn.LayerNorm(h, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, attention_mask):
        x = self.attn_norm(x + self.dropout(self.attn_dense(self.attention(x, attention_mask))))
        y = self.out(nn.functional.gelu(self.inter(x)))
        return self.out_norm(x + self.dropout(y))


class MiniBert(nn.Module):
    def __init__(self, config: Optional[MiniBertConfig] = None):
        super().__init__()
        config = config or MiniBertConfig()
        self.config = config
        self.word = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Linear(config.hidden_size, config.hidden_size)

    def get_extended_attention_mask(self, attention_mask, dtype):
        extended = attention_mask[:, None, :, None].to(dtype)
        return (1.0 - extended) * torch.finfo(dtype).min

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        x = self.word(input_ids) + self.position(positions) + self.token_type(token_type_ids)
        x = self.dropout(self.norm(x))
        mask = self.get_extended_attention_mask(attention_mask, x.dtype)
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))
