"""A learned key mask is always handed to the fused kernel, so its causal flag is never set and tokens see the future.

huggingface/transformers #48769 (2026), reported in #48748
https://github.com/huggingface/transformers/pull/48769
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class DogeAttention(nn.Module):
        """Causal grouped-query attention with a learned additive mask over keys.

        forward(hidden_states, attention_mask=None): hidden_states (B, T, C); attention_mask an additive
        (B, 1, T, T) mask or None. None means: no padding, plain causal attention.
        """

        def __init__(self, hidden_size=64, num_heads=4, num_kv_heads=2):
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, hidden_size // num_heads
            self.num_key_value_groups = num_heads // num_kv_heads
            self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim, bias=False)
            self.dt_proj = nn.Linear(num_kv_heads * self.head_dim, num_kv_heads, bias=False)
            self.A = nn.Parameter(torch.randn(num_kv_heads) * 0.1)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        def prepare_dynamic_mask(self, hidden_states, dt_states, attention_mask):
            T = hidden_states.shape[1]
            attn_mask = dt_states[:, :, None, :].expand(-1, -1, T, -1)
            if attention_mask is None and rev != 1:
                future = torch.ones(T, T, dtype=torch.bool, device=hidden_states.device).triu(1)
                attn_mask = attn_mask.masked_fill(future, torch.finfo(attn_mask.dtype).min)
            if attention_mask is not None:
                attn_mask = attn_mask.masked_fill(attention_mask < 0, torch.finfo(attn_mask.dtype).min)
            return attn_mask

        def forward(self, hidden_states, attention_mask=None):
            B, T, _ = hidden_states.shape
            q = self.q_proj(hidden_states).view(B, T, -1, self.head_dim).transpose(1, 2)
            k = self.k_proj(hidden_states).view(B, T, -1, self.head_dim).transpose(1, 2)
            v = self.v_proj(hidden_states).view(B, T, -1, self.head_dim).transpose(1, 2)
            dt = self.dt_proj(v.transpose(1, 2).reshape(B, T, -1))
            dt = torch.exp(self.A * F.softplus(dt)).transpose(1, 2)
            k, v, dt = (t.repeat_interleave(self.num_key_value_groups, dim=1) for t in (k, v, dt))
            attn_mask = self.prepare_dynamic_mask(hidden_states, dt, attention_mask)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask,
                                               is_causal=attn_mask is None and T > 1)
            return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))

    torch.manual_seed(0)
    return DogeAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
