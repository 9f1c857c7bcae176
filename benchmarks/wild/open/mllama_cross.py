"""Cross-attention never sets is_causal, so the kernel dispatcher takes it for a decoder and masks it causally.

huggingface/transformers #48172 (2026)
https://github.com/huggingface/transformers/issues/48172
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def sdpa_attention_forward(module, query, key, value, attention_mask, scaling, dropout=0.0):
    is_causal = query.shape[2] > 1 and attention_mask is None and getattr(module, "is_causal", True)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout,
                                         scale=scaling, is_causal=is_causal)
    return out.transpose(1, 2).contiguous()


def _build(rev):
    class MllamaTextCrossAttention(nn.Module):
        """Text tokens attend to image features.

        forward(hidden_states, cross_attention_states, attention_mask=None): (B, T, C), (B, S, C); attention_mask
        additive (B, 1, T, S); None: every text token may see every image token.
        """

        def __init__(self, hidden_size=64, num_heads=4, num_key_value_heads=2):
            super().__init__()
            self.num_heads, self.num_key_value_heads = num_heads, num_key_value_heads
            self.head_dim = hidden_size // num_heads
            self.scaling = self.head_dim ** -0.5
            if rev == 2:
                self.is_causal = False
            self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
            self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
            self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size, bias=False)
            self.q_norm = nn.RMSNorm(self.head_dim)
            self.k_norm = nn.RMSNorm(self.head_dim)

        def forward(self, hidden_states, cross_attention_states, attention_mask=None):
            B, T, _ = hidden_states.shape
            S = cross_attention_states.shape[1]
            q = self.q_norm(self.q_proj(hidden_states).view(B, T, -1, self.head_dim)).transpose(1, 2)
            k = self.k_norm(self.k_proj(cross_attention_states).view(B, S, -1, self.head_dim)).transpose(1, 2)
            v = self.v_proj(cross_attention_states).view(B, S, -1, self.head_dim).transpose(1, 2)
            n = self.num_heads // self.num_key_value_heads
            k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
            y = sdpa_attention_forward(self, q, k, v, attention_mask, self.scaling)
            return self.o_proj(y.reshape(B, T, -1))

    torch.manual_seed(0)
    return MllamaTextCrossAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 6, 64), torch.randn(2, 9, 64)), {}
