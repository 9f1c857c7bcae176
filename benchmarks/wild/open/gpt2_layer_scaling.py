"""The SDPA path never gets the configured score scaling (1 / (layer_idx + 1) here), which only the eager path applies.

huggingface/transformers #44397 (2026)
https://github.com/huggingface/transformers/pull/44397
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class GPT2Config:
    """
    scale_attn_weights: scale attention weights by dividing by sqrt(head_dim).
    scale_attn_by_inverse_layer_idx: additionally scale attention weights by 1 / (layer_idx + 1).
    """

    vocab_size: int = 50
    n_positions: int = 32
    n_embd: int = 32
    n_layer: int = 3
    n_head: int = 4
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = True
    attn_implementation: str = "sdpa"


def eager_attention_forward(module, query, key, value, **kwargs):
    attn_weights = torch.matmul(query, key.transpose(-1, -2))
    if module.scale_attn_weights:
        attn_weights = attn_weights / (value.size(-1) ** 0.5)
    # Layer-wise attention scaling
    if module.scale_attn_by_inverse_layer_idx:
        attn_weights = attn_weights / float(module.layer_idx + 1)
    length = query.size(-2)
    causal_mask = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    attn_weights = attn_weights.masked_fill(~causal_mask, torch.finfo(attn_weights.dtype).min)
    return torch.matmul(attn_weights.softmax(dim=-1), value).transpose(1, 2)


def sdpa_attention_forward(module, query, key, value, scaling=None, **kwargs):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).transpose(1, 2)


ALL_ATTENTION_FUNCTIONS = {"eager": eager_attention_forward, "sdpa": sdpa_attention_forward}


class _GPT2AttentionBase(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.config = config
        self.embed_dim, self.num_heads = config.n_embd, config.n_head
        self.head_dim = self.embed_dim // self.num_heads
        self.scale_attn_weights = config.scale_attn_weights
        # Layer-wise attention scaling, reordering, and upcasting
        self.scale_attn_by_inverse_layer_idx = config.scale_attn_by_inverse_layer_idx
        self.layer_idx = layer_idx
        self.c_attn = nn.Linear(self.embed_dim, 3 * self.embed_dim)
        self.c_proj = nn.Linear(self.embed_dim, self.embed_dim)


class _GPT2Block(nn.Module):
    def __init__(self, config, layer_idx, attention):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = attention(config, layer_idx)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(approximate="tanh"),
                                 nn.Linear(4 * config.n_embd, config.n_embd))

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attn(self.ln_1(hidden_states))
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class GPT2Model(nn.Module):
    """Token ids [batch, seq] to hidden states [batch, seq, n_embd]."""

    def __init__(self, config, attention):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList([_GPT2Block(config, layer_idx, attention) for layer_idx in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)

    def forward(self, input_ids):
        hidden_states = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.h:
            hidden_states = block(hidden_states)
        return self.ln_f(hidden_states)


def broken() -> nn.Module:
    class GPT2Attention(_GPT2AttentionBase):
        def forward(self, hidden_states):
            query_states, key_states, value_states = (
                t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
                for t in self.c_attn(hidden_states).split(self.embed_dim, dim=2))
            attention_interface = ALL_ATTENTION_FUNCTIONS[self.config.attn_implementation]
            attn_output = attention_interface(self, query_states, key_states, value_states)
            return self.c_proj(attn_output.flatten(2))

    torch.manual_seed(0)
    return GPT2Model(GPT2Config(), GPT2Attention)


def fixed() -> nn.Module:
    class GPT2Attention(_GPT2AttentionBase):
        def __init__(self, config, layer_idx):
            super().__init__(config, layer_idx)
            self.scaling = self.head_dim ** -0.5 if self.scale_attn_weights else 1.0
            if self.scale_attn_by_inverse_layer_idx:
                self.scaling /= float(self.layer_idx + 1)

        def forward(self, hidden_states):
            query_states, key_states, value_states = (
                t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
                for t in self.c_attn(hidden_states).split(self.embed_dim, dim=2))
            attention_interface = ALL_ATTENTION_FUNCTIONS[self.config.attn_implementation]
            attn_output = attention_interface(self, query_states, key_states, value_states, scaling=self.scaling)
            return self.c_proj(attn_output.flatten(2))

    torch.manual_seed(0)
    return GPT2Model(GPT2Config(), GPT2Attention)
