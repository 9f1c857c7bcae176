import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def sine_position_2d(valid, dim, temperature=10000.0):
    """valid (B, H, W) bool -> (B, H * W, dim), normalised by the real size of each image."""
    y = valid.cumsum(dim=1).float()
    x = valid.cumsum(dim=2).float()
    y = y / y[:, -1:, :].clamp(min=1.0) * 2 * math.pi
    x = x / x[:, :, -1:].clamp(min=1.0) * 2 * math.pi
    n = dim // 4
    freq = temperature ** (torch.arange(n, device=valid.device).float() / n)
    parts = []
    for coord in (y, x):
        angle = coord.unsqueeze(-1) / freq
        parts += [angle.sin(), angle.cos()]
    return torch.cat(parts, dim=-1).flatten(1, 2)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of each pixel: no statistics over padding."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, pos, pad):
        q = x + pos  # positions go to queries and keys, never to values
        x = self.norm1(x + self.drop(self.attn(q, q, x, key_padding_mask=pad, need_weights=False)[0]))
        return self.norm2(x + self.drop(self.ffn(x)))


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, query_pos, memory, pos, pad):
        q = x + query_pos
        x = self.norm1(x + self.drop(self.self_attn(q, q, x, need_weights=False)[0]))
        y = self.cross_attn(x + query_pos, memory + pos, memory, key_padding_mask=pad, need_weights=False)[0]
        x = self.norm2(x + self.drop(y))
        return self.norm3(x + self.drop(self.ffn(x)))


class MiniDETR(nn.Module):
    """Detection transformer on a small convolutional backbone of stride 16.

    Inputs:
        images: (B, 3, H, W), smaller images are placed at the top left.
        sizes: (B, 2) height and width of each image, ``None`` if all fill the canvas.

    Returns ``logits`` (B, queries, classes + 1), the last class is "no object", and ``boxes``
    (B, queries, 4) as (cx, cy, w, h) in 0..1. With ``aux`` a list of the earlier layers is added.
    """

    def __init__(self, num_classes=20, num_queries=25, dim=128, heads=4, enc_layers=2, dec_layers=2,
                 dropout=0.1, aux=False):
        super().__init__()
        assert dim % 4 == 0
        self.dim, self.aux = dim, aux
        chans = [3, 32, 64, 96, dim]
        layers = []
        for a, b in zip(chans[:-1], chans[1:]):
            layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), ChannelNorm(b), nn.ReLU()]
        self.backbone = nn.Sequential(*layers)
        self.input_proj = nn.Conv2d(dim, dim, 1)
        self.query_pos = nn.Embedding(num_queries, dim)
        self.encoder = nn.ModuleList([EncoderLayer(dim, heads, dropout) for _ in range(enc_layers)])
        self.decoder = nn.ModuleList([DecoderLayer(dim, heads, dropout) for _ in range(dec_layers)])
        self.dec_norm = nn.LayerNorm(dim)
        self.cls_head = nn.Linear(dim, num_classes + 1)
        self.box_head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, images, sizes=None):
        B, _, H, W = images.shape
        pixel = torch.ones(B, H, W, dtype=torch.bool, device=images.device)
        if sizes is not None:
            rows = torch.arange(H, device=images.device) < sizes[:, :1]
            cols = torch.arange(W, device=images.device) < sizes[:, 1:]
            pixel = rows[:, :, None] & cols[:, None, :]
            images = images * pixel.unsqueeze(1)

        fmap = self.input_proj(self.backbone(images))
        valid = F.interpolate(pixel[:, None].float(), size=fmap.shape[-2:], mode="nearest")[:, 0] > 0.5
        pos = sine_position_2d(valid, self.dim).to(fmap.dtype)
        pad = ~valid.flatten(1)

        memory = fmap.flatten(2).transpose(1, 2)
        for layer in self.encoder:
            memory = layer(memory, pos, pad)

        query_pos = self.query_pos.weight.unsqueeze(0).expand(B, -1, -1)
        x = torch.zeros_like(query_pos)  # content starts empty, the queries differ by position only
        outputs = []
        for layer in self.decoder:
            x = layer(x, query_pos, memory, pos, pad)
            h = self.dec_norm(x)
            outputs.append({"logits": self.cls_head(h), "boxes": self.box_head(h).sigmoid()})
        result = dict(outputs[-1])
        if self.aux:
            result["aux_outputs"] = outputs[:-1]
        return result
