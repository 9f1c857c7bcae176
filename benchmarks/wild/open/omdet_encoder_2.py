"""nn.MultiheadAttention without batch_first is given (batch, tokens, dim), so it attends across the batch.

om-ai-lab/OmDet #19 (2024)
https://github.com/om-ai-lab/OmDet/issues/19
"""
import torch
from torch import nn


class _TransformerEncoderLayerBase(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward=64, dropout=0.1, normalize_before=False):
        super().__init__()
        self.normalize_before = normalize_before
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.activation = nn.GELU()
        self.self_attn = self.build_attention(d_model, nhead, dropout)

    @staticmethod
    def with_pos_embed(tensor, pos_embed):
        return tensor if pos_embed is None else tensor + pos_embed

    def forward(self, src, src_mask=None, pos_embed=None):
        """src: [B, HxW, C]"""
        residual = src
        if self.normalize_before:
            src = self.norm1(src)
        q = k = self.with_pos_embed(src, pos_embed)
        src, _ = self.self_attn(q, k, value=src, attn_mask=src_mask)

        src = residual + self.dropout1(src)
        if not self.normalize_before:
            src = self.norm1(src)

        residual = src
        if self.normalize_before:
            src = self.norm2(src)
        src = self.linear2(self.dropout(self.activation(self.linear1(src))))
        src = residual + self.dropout2(src)
        if not self.normalize_before:
            src = self.norm2(src)
        return src


class HybridEncoder(nn.Module):
    """Runs the encoder layer on the last feature map, [B, C, H, W] -> [B, C, H, W]."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, feat):
        h, w = feat.shape[2:]
        src_flatten = feat.flatten(2).permute(0, 2, 1)  # flatten [B, C, H, W] to [B, HxW, C]
        memory = self.layer(src_flatten)
        return memory.permute(0, 2, 1).reshape(-1, feat.shape[1], h, w).contiguous()


def broken() -> nn.Module:
    class TransformerEncoderLayer(_TransformerEncoderLayerBase):
        def build_attention(self, d_model, nhead, dropout):
            return nn.MultiheadAttention(d_model, nhead, dropout)

    torch.manual_seed(0)
    return HybridEncoder(TransformerEncoderLayer(32, 4))


def fixed() -> nn.Module:
    class TransformerEncoderLayer(_TransformerEncoderLayerBase):
        def build_attention(self, d_model, nhead, dropout):
            return nn.MultiheadAttention(d_model, nhead, dropout, batch_first=True)

    torch.manual_seed(0)
    return HybridEncoder(TransformerEncoderLayer(32, 4))


def example() -> tuple[tuple, dict]:
    return (torch.randn(3, 32, 4, 4, generator=torch.Generator().manual_seed(1)),), {}
