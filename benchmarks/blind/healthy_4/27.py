from typing import Optional, Tuple

import torch
from torch import nn


def invert_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Boolean keep-mask -> additive mask with 0 where kept and the dtype's minimum elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


class SelfAttention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden_states, attention_mask, past_key_value=None):
        bsz, tgt_len, embed_dim = hidden_states.shape
        q = self.q_proj(hidden_states) * self.scaling
        k, v = self.k_proj(hidden_states), self.v_proj(hidden_states)
        q, k, v = (t.view(bsz, tgt_len, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)

        weights = torch.matmul(q, k.transpose(2, 3)) + attention_mask
        # keep the sum of several masks inside the range of the dtype
        weights = torch.max(weights, weights.new_tensor(torch.finfo(weights.dtype).min))
        # half precision: softmax in float32
        probs = nn.functional.softmax(weights, dim=-1, dtype=torch.float32).to(v.dtype)
        probs = nn.functional.dropout(probs, p=self.dropout, training=self.training)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(bsz, tgt_len, embed_dim)
        return self.out_proj(out), (k, v)


class OPTDecoderLayer(nn.Module):
    """OPT decoder layer.

    Args:
        do_layer_norm_before: pre-norm if True (125m, 1.3B ... 175B), post-norm if False (350m).

    ``attention_mask`` of forward is (batch, past + seq): 1 for tokens that are **not masked**,
    0 for padding.
    """

    def __init__(
        self,
        embed_dim: int = 256,
        num_heads: int = 8,
        ffn_dim: int = 1024,
        dropout: float = 0.1,
        attention_dropout: float = 0.0,
        do_layer_norm_before: bool = True,
    ):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.self_attn = SelfAttention(embed_dim, num_heads, attention_dropout)
        self.do_layer_norm_before = do_layer_norm_before
        self.dropout = dropout
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.fc1 = nn.Linear(embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)

    def _prepare_mask(self, attention_mask, hidden_states, past):
        bsz, seq, _ = hidden_states.shape
        keep = torch.ones(seq, past + seq, dtype=torch.bool, device=hidden_states.device).tril(past)
        mask = invert_mask(keep, hidden_states.dtype)[None, None]
        if attention_mask is not None:
            mask = mask + invert_mask(attention_mask.bool(), hidden_states.dtype)[:, None, None, :]
        return mask

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        past_key_value: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ):
        past = 0 if past_key_value is None else past_key_value[0].shape[2]
        mask = self._prepare_mask(attention_mask, hidden_states, past)

        residual = hidden_states
        if self.do_layer_norm_before:
            hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states, present = self.self_attn(hidden_states, mask, past_key_value)
        hidden_states = nn.functional.dropout(hidden_states, p=self.dropout, training=self.training)
        hidden_states = residual + hidden_states
        if not self.do_layer_norm_before:
            hidden_states = self.self_attn_layer_norm(hidden_states)

        residual = hidden_states
        if self.do_layer_norm_before:
            hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = self.fc2(nn.functional.relu(self.fc1(hidden_states)))
        hidden_states = nn.functional.dropout(hidden_states, p=self.dropout, training=self.training)
        hidden_states = residual + hidden_states
        if not self.do_layer_norm_before:
            hidden_states = self.final_layer_norm(hidden_states)
        return hidden_states, present
