from typing import Optional

import torch
from torch import nn


class SpeechAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, tensor: torch.Tensor, seq_len: int, bsz: int):
        return tensor.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        bsz, tgt_len, _ = hidden_states.size()
        proj_shape = (bsz * self.num_heads, -1, self.head_dim)
        query_states = self._shape(self.q_proj(hidden_states) * self.scaling, tgt_len, bsz).view(*proj_shape)
        key_states = self._shape(self.k_proj(hidden_states), tgt_len, bsz).view(*proj_shape)
        value_states = self._shape(self.v_proj(hidden_states), tgt_len, bsz).view(*proj_shape)

        attn_weights = torch.bmm(query_states, key_states.transpose(1, 2))
        if attention_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, tgt_len)
            attn_weights = attn_weights.masked_fill(
                attention_mask[:, None, None, :] == 0, torch.finfo(attn_weights.dtype).min)
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, tgt_len)
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_probs = nn.functional.dropout(attn_weights, p=self.dropout, training=self.training)

        attn_output = torch.bmm(attn_probs, value_states)
        attn_output = attn_output.view(bsz, self.num_heads, tgt_len, self.head_dim)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        return self.out_proj(attn_output)


class SpeechEncoderLayerStableLayerNorm(nn.Module):
    """Pre-norm encoder layer (`do_stable_layer_norm=True`); the stack ends with its own layer norm."""

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, intermediate_size: int = 128,
                 hidden_dropout: float = 0.1, attention_dropout: float = 0.1, layer_norm_eps: float = 1e-5):
        super().__init__()
        self.attention = SpeechAttention(hidden_size, num_attention_heads, attention_dropout)
        self.dropout = nn.Dropout(hidden_dropout)
        self.layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.intermediate_dense = nn.Linear(hidden_size, intermediate_size)
        self.output_dense = nn.Linear(intermediate_size, hidden_size)
        self.final_layer_norm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)

    def feed_forward(self, hidden_states):
        hidden_states = self.dropout(nn.functional.gelu(self.intermediate_dense(hidden_states)))
        return self.dropout(self.output_dense(hidden_states))

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None):
        hidden_states = self.layer_norm(hidden_states)
        attn_residual = hidden_states
        hidden_states = self.attention(hidden_states, attention_mask=attention_mask)
        hidden_states = self.dropout(hidden_states)
        hidden_states = attn_residual + hidden_states
        hidden_states = hidden_states + self.feed_forward(self.final_layer_norm(hidden_states))
        return hidden_states
