"""The causal flag follows self.training, so in evaluation the model sees the future.

shiyu-coder/Kronos #199 (2025)
https://github.com/shiyu-coder/Kronos/issues/199
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class MultiHeadAttention(nn.Module):
        """Causal attention over time steps. key_padding_mask (B, T): True at padding."""

        def __init__(self, d_model, n_heads, attn_dropout_p=0.0, resid_dropout=0.0):
            super().__init__()
            self.n_heads, self.head_dim = n_heads, d_model // n_heads
            self.q_proj = nn.Linear(d_model, d_model)
            self.k_proj = nn.Linear(d_model, d_model)
            self.v_proj = nn.Linear(d_model, d_model)
            self.out_proj = nn.Linear(d_model, d_model)
            self.attn_dropout_p = attn_dropout_p
            self.resid_dropout = nn.Dropout(resid_dropout)

        def forward(self, x, key_padding_mask=None):
            B, T, _ = x.shape
            q = self.q_proj(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
            k = self.k_proj(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
            v = self.v_proj(x).view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
            dropout_p = self.attn_dropout_p if self.training else 0.0
            is_causal_flag = self.training if rev == 1 else True
            if key_padding_mask is None:
                y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=is_causal_flag)
            else:
                keep = ~key_padding_mask[:, None, None, :]
                if is_causal_flag:
                    keep = keep & torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
                y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, dropout_p=dropout_p)
            return self.resid_dropout(self.out_proj(y.transpose(1, 2).reshape(B, T, -1)))

    class TransformerBlock(nn.Module):
        """forward(x, key_padding_mask=None): an autoregressive block, x (B, T, d_model)."""

        def __init__(self, d_model=32, n_heads=4, ff_dim=64):
            super().__init__()
            self.norm1 = nn.RMSNorm(d_model)
            self.self_attn = MultiHeadAttention(d_model, n_heads)
            self.norm2 = nn.RMSNorm(d_model)
            self.w1 = nn.Linear(d_model, ff_dim, bias=False)
            self.w3 = nn.Linear(d_model, ff_dim, bias=False)
            self.w2 = nn.Linear(ff_dim, d_model, bias=False)

        def forward(self, x, key_padding_mask=None):
            x = x + self.self_attn(self.norm1(x), key_padding_mask=key_padding_mask)
            h = self.norm2(x)
            return x + self.w2(F.silu(self.w1(h)) * self.w3(h))

    torch.manual_seed(0)
    return TransformerBlock()


def broken():
    return _build(1)


def fixed():
    return _build(2)
