"""The tanh soft cap is applied after the mask, turning -inf into -softcap, so masked keys keep some weight.

onnx/onnx #7865 (2026)
https://github.com/onnx/onnx/issues/7865
"""
import torch
import torch.nn as nn


class _Gemma2AttentionBase(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4, num_key_value_heads=2, attn_logit_softcapping=5.0):
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.num_key_value_groups = num_heads // num_key_value_heads
        self.scaling = self.head_dim ** -0.5
        self.attn_logit_softcapping = attn_logit_softcapping
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: [batch, seq], 1 for tokens, 0 for padding. Attention is causal."""
        hidden_shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query_states = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        key_states = key_states.repeat_interleave(self.num_key_value_groups, dim=1)
        value_states = value_states.repeat_interleave(self.num_key_value_groups, dim=1)

        seq_len = hidden_states.shape[1]
        keep = torch.ones(seq_len, seq_len, dtype=torch.bool, device=hidden_states.device).tril()[None, None]
        if attention_mask is not None:
            keep = keep & attention_mask[:, None, None, :].bool()
        causal_mask = torch.zeros(keep.shape, dtype=hidden_states.dtype, device=hidden_states.device)
        causal_mask = causal_mask.masked_fill(~keep, torch.finfo(hidden_states.dtype).min)
        attn_output = self.eager_attention_forward(query_states, key_states, value_states, causal_mask)
        return self.o_proj(attn_output.transpose(1, 2).reshape(*hidden_states.shape[:-1], -1))


def broken() -> nn.Module:
    class Gemma2Attention(_Gemma2AttentionBase):
        def eager_attention_forward(self, query, key, value, attention_mask):
            attn_weights = torch.matmul(query, key.transpose(2, 3)) * self.scaling
            if attention_mask is not None:
                attn_weights = attn_weights + attention_mask
            if self.attn_logit_softcapping is not None:
                attn_weights = attn_weights / self.attn_logit_softcapping
                attn_weights = torch.tanh(attn_weights)
                attn_weights = attn_weights * self.attn_logit_softcapping

            # upcast attention to fp32
            attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
            return torch.matmul(attn_weights, value)

    torch.manual_seed(0)
    return Gemma2Attention()


def fixed() -> nn.Module:
    class Gemma2Attention(_Gemma2AttentionBase):
        def eager_attention_forward(self, query, key, value, attention_mask):
            attn_weights = torch.matmul(query, key.transpose(2, 3)) * self.scaling
            if self.attn_logit_softcapping is not None:
                attn_weights = attn_weights / self.attn_logit_softcapping
                attn_weights = torch.tanh(attn_weights)
                attn_weights = attn_weights * self.attn_logit_softcapping
            if attention_mask is not None:
                attn_weights = attn_weights + attention_mask

            # upcast attention to fp32
            attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
            return torch.matmul(attn_weights, value)

    torch.manual_seed(0)
    return Gemma2Attention()
