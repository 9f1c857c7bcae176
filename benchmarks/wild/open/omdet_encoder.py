"""nn.MultiheadAttention is left at batch_first=False while it is fed (batch, tokens, channels), so samples of a batch attend to each other.

om-ai-lab/OmDet #19 (2024)
https://github.com/om-ai-lab/OmDet/issues/19
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class TransformerLayer(nn.Module):
        """forward(src, src_mask=None, pos_embed=None): src (batch_size, tokens, d_model)."""

        def __init__(self, d_model=32, nhead=4, dim_feedforward=64, dropout=0.0, normalize_before=False):
            super().__init__()
            self.normalize_before = normalize_before
            self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout, **({"batch_first": True} if rev == 2 else {}))
            self.linear1 = nn.Linear(d_model, dim_feedforward)
            self.linear2 = nn.Linear(dim_feedforward, d_model)
            self.norm1 = nn.LayerNorm(d_model)
            self.norm2 = nn.LayerNorm(d_model)

        def forward(self, src, src_mask=None, pos_embed=None):
            residual = src
            if self.normalize_before:
                src = self.norm1(src)
            q = k = src if pos_embed is None else src + pos_embed
            src, _ = self.self_attn(q, k, value=src, attn_mask=src_mask)
            src = residual + src
            if not self.normalize_before:
                src = self.norm1(src)
            src = src + self.linear2(F.gelu(self.linear1(src)))
            return self.norm2(src)

    torch.manual_seed(0)
    return TransformerLayer()


def broken():
    return _build(1)


def fixed():
    return _build(2)
