"""The dropout probability is handed to the fused kernel without asking self.training, so evaluation is random.

meta-pytorch/torchtune #1791 (2024)
https://github.com/meta-pytorch/torchtune/issues/1791
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class MultiHeadAttention(nn.Module):
        """Grouped-query causal attention.

        attn_dropout: dropout of the attention weights; this argument is ignored if self.training is False.
        forward(x, mask=None): x (b, s, d); mask (b, s, s) bool, True = takes part; None: causal.
        """

        def __init__(self, embed_dim=64, num_heads=4, num_kv_heads=2, attn_dropout=0.2):
            super().__init__()
            self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, embed_dim // num_heads
            self.attn_dropout = attn_dropout
            self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, bias=False)
            self.k_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(embed_dim, num_kv_heads * self.head_dim, bias=False)
            self.output_proj = nn.Linear(embed_dim, embed_dim, bias=False)

        def forward(self, x, mask=None):
            b, s, _ = x.shape
            n = self.num_heads // self.num_kv_heads
            q = self.q_proj(x).view(b, s, -1, self.head_dim).transpose(1, 2)
            k = self.k_proj(x).view(b, s, self.num_kv_heads, 1, self.head_dim).expand(-1, -1, -1, n, -1)
            v = self.v_proj(x).view(b, s, self.num_kv_heads, 1, self.head_dim).expand(-1, -1, -1, n, -1)
            k = k.reshape(b, s, -1, self.head_dim).transpose(1, 2)
            v = v.reshape(b, s, -1, self.head_dim).transpose(1, 2)
            dropout_p = self.attn_dropout if rev == 1 or self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None],
                                               dropout_p=dropout_p, is_causal=mask is None)
            return self.output_proj(y.transpose(1, 2).reshape(b, s, -1))

    torch.manual_seed(0)
    return MultiHeadAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
