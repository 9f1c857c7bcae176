"""The kernel is configured with attn_mask_type "causal", for which it ignores the mask it is given, so padding is attended to.

AI-Hypercomputer/maxtext #878 (2024)
https://github.com/AI-Hypercomputer/maxtext/issues/878
"""
import torch
import torch.nn as nn


class DotProductAttention(nn.Module):
    """mask (B, 1, T, S) bool, True where attention is not allowed; ignored for "no_mask" and "causal"."""

    def __init__(self, head_dim, attn_mask_type):
        super().__init__()
        self.scale_factor, self.attn_mask_type = head_dim ** -0.5, attn_mask_type

    def forward(self, query, key, value, mask=None):
        s = torch.einsum("bqhd,bkhd->bhqk", query, key) * self.scale_factor
        lo = torch.finfo(s.dtype).min
        if "causal" in self.attn_mask_type:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), lo)
        if "padding" in self.attn_mask_type and mask is not None:
            s = s.masked_fill(mask, lo)
        return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), value)


def _build(rev):
    class AttentionOp(nn.Module):
        """Causal self-attention.

        forward(inputs, decoder_segment_ids=None): inputs (B, T, C); decoder_segment_ids (B, T) ints: tokens attend
        only to earlier tokens with the same id; 0 is padding (anywhere), seen by no other token.
        """

        def __init__(self, emb_dim=32, num_query_heads=4):
            super().__init__()
            self.num_query_heads, self.head_dim = num_query_heads, emb_dim // num_query_heads
            self.query = nn.Linear(emb_dim, emb_dim, bias=False)
            self.key = nn.Linear(emb_dim, emb_dim, bias=False)
            self.value = nn.Linear(emb_dim, emb_dim, bias=False)
            self.out = nn.Linear(emb_dim, emb_dim, bias=False)
            self.dpa_layer = DotProductAttention(self.head_dim, "causal" if rev == 1 else "padding_causal")

        def generate_attention_mask(self, ids):
            if ids is None:
                return None
            same = ids[:, None, :, None] == ids[:, None, None, :]
            eye = torch.eye(ids.shape[1], dtype=torch.bool, device=ids.device)
            return ~((same & (ids != 0)[:, None, None, :]) | eye)

        def forward(self, inputs, decoder_segment_ids=None):
            B, T, C = inputs.shape
            q, k, v = (p(inputs).view(B, T, self.num_query_heads, self.head_dim) for p in (self.query, self.key, self.value))
            y = self.dpa_layer(q, k, v, mask=self.generate_attention_mask(decoder_segment_ids))
            return self.out(y.reshape(B, T, C))

    torch.manual_seed(0)
    return AttentionOp()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    ids = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2, 2, 0], [1, 1, 2, 2, 2, 3, 3, 3, 0, 0]])
    return (torch.randn(2, 10, 32),), {"decoder_segment_ids": ids}
