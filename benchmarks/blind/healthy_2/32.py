"""A compact DETR: set prediction of boxes from padded images."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SinePositions(nn.Module):
    """2-D sine embedding; coordinates run over the unpadded part of every image."""

    def __init__(self, dim, temperature=10000.0):
        super().__init__()
        assert dim % 4 == 0
        self.num_feats = dim // 2
        self.temperature = temperature

    def _encode(self, coord):
        i = torch.arange(self.num_feats // 2, device=coord.device, dtype=coord.dtype)
        angle = coord.unsqueeze(-1) / self.temperature ** (2 * i / self.num_feats)
        return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)

    def forward(self, pad, dtype):
        real = (~pad).to(dtype)
        y, x = real.cumsum(1), real.cumsum(2)
        y = y / (y[:, -1:, :] + 1e-6) * 2 * math.pi
        x = x / (x[:, :, -1:] + 1e-6) * 2 * math.pi
        return torch.cat([self._encode(y), self._encode(x)], dim=-1)  # (B, H, W, dim)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(dim, ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ff, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, pos, pad):
        q = k = src + pos  # positions steer where to look, values carry content only
        y, _ = self.self_attn(q, k, src, key_padding_mask=pad, need_weights=False)
        src = self.norm1(src + self.dropout(y))
        return self.norm2(src + self.dropout(self.ffn(src)))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(dim, ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(ff, dim))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tgt, query_pos, memory, pos, pad):
        q = k = tgt + query_pos
        y, _ = self.self_attn(q, k, tgt, need_weights=False)
        tgt = self.norm1(tgt + self.dropout(y))
        y, _ = self.cross_attn(tgt + query_pos, memory + pos, memory, key_padding_mask=pad, need_weights=False)
        tgt = self.norm2(tgt + self.dropout(y))
        return self.norm3(tgt + self.dropout(self.ffn(tgt)))


class MiniDETR(nn.Module):
    """
    images:     (B, 3, H, W), smaller images sit in the upper left corner
    pixel_pad:  (B, H, W) bool, True on padded pixels
    Returns ``pred_logits`` (B, Q, num_classes + 1), the last class is "no object", and
    ``pred_boxes`` (B, Q, 4) as normalised (cx, cy, w, h).
    """

    def __init__(self, num_classes=10, num_queries=20, dim=64, heads=4, enc_layers=2,
                 dec_layers=2, ff=128, dropout=0.1):
        super().__init__()
        self.backbone = nn.ModuleList([
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.Conv2d(64, dim, 3, stride=2, padding=1),
        ])
        self.positions = SinePositions(dim)
        self.encoder = nn.ModuleList(EncoderLayer(dim, heads, ff, dropout) for _ in range(enc_layers))
        self.decoder = nn.ModuleList(DecoderLayer(dim, heads, ff, dropout) for _ in range(dec_layers))
        self.query_embed = nn.Embedding(num_queries, dim)
        self.class_head = nn.Linear(dim, num_classes + 1)
        self.box_head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, images, pixel_pad):
        x = images.masked_fill(pixel_pad.unsqueeze(1), 0.0)
        for conv in self.backbone:
            x = F.relu(conv(x))
        # nearest sampling keeps the upper left cell real, so no image is masked completely
        pad = F.interpolate(pixel_pad.unsqueeze(1).float(), size=x.shape[-2:], mode="nearest").squeeze(1).bool()
        pos = self.positions(pad, x.dtype).flatten(1, 2)
        memory = x.flatten(2).transpose(1, 2)
        pad = pad.flatten(1)
        for layer in self.encoder:
            memory = layer(memory, pos, pad)

        query_pos = self.query_embed.weight.unsqueeze(0).expand(images.size(0), -1, -1)
        tgt = torch.zeros_like(query_pos)
        for layer in self.decoder:
            tgt = layer(tgt, query_pos, memory, pos, pad)
        return {"pred_logits": self.class_head(tgt), "pred_boxes": self.box_head(tgt).sigmoid()}
