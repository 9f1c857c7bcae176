"""The upper-triangular "masked" pattern is handed to scaled_dot_product_attention, where True means "may attend", so only the future is seen.

rasbt/LLMs-from-scratch #1061 (2026)
https://github.com/rasbt/LLMs-from-scratch/issues/1061
"""
import torch
import torch.nn as nn


def _build(rev):
    class MHAPyTorchSDPAWithoutFlash(nn.Module):
        """Causal self-attention, forward(x), x (batch_size, num_tokens, d_in)."""

        def __init__(self, d_in, d_out, num_heads, context_length, dropout=0.0, qkv_bias=False):
            super().__init__()
            assert d_out % num_heads == 0, "embed_dim is indivisible by num_heads"
            self.num_heads = num_heads
            self.context_length = context_length
            self.head_dim = d_out // num_heads
            self.d_out = d_out
            self.qkv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)
            self.proj = nn.Linear(d_out, d_out)
            self.dropout = dropout
            self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1).bool())

        def forward(self, x):
            batch_size, num_tokens, embed_dim = x.shape
            qkv = self.qkv(x).view(batch_size, num_tokens, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
            queries, keys, values = qkv
            if self.context_length >= num_tokens:
                attn_mask = self.mask[:num_tokens, :num_tokens]
            else:
                attn_mask = self.mask[:self.context_length, :self.context_length]
            if rev == 2:
                attn_mask = ~attn_mask
            use_dropout = 0. if not self.training else self.dropout
            context_vec = nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=attn_mask, dropout_p=use_dropout, is_causal=False)
            context_vec = context_vec.transpose(1, 2).contiguous().view(batch_size, num_tokens, self.d_out)
            return self.proj(context_vec)

    torch.manual_seed(0)
    return MHAPyTorchSDPAWithoutFlash(32, 32, 4, 16)


def broken():
    return _build(1)


def fixed():
    return _build(2)
