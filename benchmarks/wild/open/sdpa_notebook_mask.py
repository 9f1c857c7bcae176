"""The upper-triangular "masked" matrix is passed to SDPA as if True meant masked, so tokens see the future only.

rasbt/LLMs-from-scratch #1061 (2026)
https://github.com/rasbt/LLMs-from-scratch/issues/1061
"""
import torch
import torch.nn as nn


class _MHABase(nn.Module):
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


def broken() -> nn.Module:
    class MHAPyTorchSDPAWithoutFlash(_MHABase):
        """Causal multi-head self-attention."""

        def forward(self, x):
            batch_size, num_tokens, embed_dim = x.shape

            # (b, num_tokens, embed_dim) --> (b, num_tokens, 3 * embed_dim)
            qkv = self.qkv(x)
            qkv = qkv.view(batch_size, num_tokens, 3, self.num_heads, self.head_dim)
            qkv = qkv.permute(2, 0, 3, 1, 4)
            queries, keys, values = qkv

            use_dropout = 0. if not self.training else self.dropout

            # Ensure attn_mask is compatible with expected shape and `batch_first=True`
            if self.context_length >= num_tokens:
                attn_mask = self.mask[:num_tokens, :num_tokens]
            else:
                attn_mask = self.mask[:self.context_length, :self.context_length]

            context_vec = nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=attn_mask, dropout_p=use_dropout, is_causal=False)

            # Combine heads, where self.d_out = self.num_heads * self.head_dim
            context_vec = context_vec.transpose(1, 2).contiguous().view(batch_size, num_tokens, self.d_out)
            return self.proj(context_vec)

    torch.manual_seed(0)
    return MHAPyTorchSDPAWithoutFlash(48, 48, 4, context_length=64)


def fixed() -> nn.Module:
    class MHAPyTorchSDPAWithoutFlash(_MHABase):
        """Causal multi-head self-attention."""

        def forward(self, x):
            batch_size, num_tokens, embed_dim = x.shape

            # (b, num_tokens, embed_dim) --> (b, num_tokens, 3 * embed_dim)
            qkv = self.qkv(x)
            qkv = qkv.view(batch_size, num_tokens, 3, self.num_heads, self.head_dim)
            qkv = qkv.permute(2, 0, 3, 1, 4)
            queries, keys, values = qkv

            use_dropout = 0. if not self.training else self.dropout

            # Ensure attn_mask is compatible with expected shape and `batch_first=True`
            if self.context_length >= num_tokens:
                attn_mask = ~self.mask[:num_tokens, :num_tokens]
            else:
                attn_mask = ~self.mask[:self.context_length, :self.context_length]

            context_vec = nn.functional.scaled_dot_product_attention(
                queries, keys, values, attn_mask=attn_mask, dropout_p=use_dropout, is_causal=False)

            # Combine heads, where self.d_out = self.num_heads * self.head_dim
            context_vec = context_vec.transpose(1, 2).contiguous().view(batch_size, num_tokens, self.d_out)
            return self.proj(context_vec)

    torch.manual_seed(0)
    return MHAPyTorchSDPAWithoutFlash(48, 48, 4, context_length=64)
