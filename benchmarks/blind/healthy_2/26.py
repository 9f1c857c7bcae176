"""Protein language model with rotary positions and an attention-based contact head."""
import math
from typing import Optional

import torch
import torch.nn as nn


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rotary(x, positions):
    """Rotate (B, H, L, D) by the integer positions (B, L)."""
    half = x.size(-1) // 2
    inv_freq = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions[:, None, :, None].float() * inv_freq
    angle = torch.cat([angle, angle], dim=-1)
    return x * angle.cos().to(x.dtype) + rotate_half(x) * angle.sin().to(x.dtype)


class ResidueAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        assert dim % num_heads == 0 and (dim // num_heads) % 2 == 0
        self.num_heads = num_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, positions, pad):
        b, n, d = x.shape
        q, k, v = (
            f(x).view(b, n, self.num_heads, -1).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = rotary(q, positions), rotary(k, positions)
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        logits = logits.masked_fill(pad[:, None, None, :], torch.finfo(logits.dtype).min)
        probs = logits.softmax(dim=-1)
        out = (self.dropout(probs) @ v).transpose(1, 2).reshape(b, n, d)
        return self.out_proj(out), probs


class ProteinLayer(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.attn_norm = nn.LayerNorm(dim)
        self.attn = ResidueAttention(dim, num_heads, dropout)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, positions, pad):
        y, probs = self.attn(self.attn_norm(x), positions, pad)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), probs


def apc(m):
    """Average product correction of (..., L, L) maps."""
    row, col = m.sum(dim=-1, keepdim=True), m.sum(dim=-2, keepdim=True)
    total = m.sum(dim=(-1, -2), keepdim=True).clamp(min=1e-8)
    return m - row * col / total


class ProteinLM(nn.Module):
    """Masked language model over amino acids that also predicts residue contacts.

    Args of forward:
        tokens:        (B, L) residue ids, ``pad_id`` on padding
        residue_index: optional (B, L) residue numbers, for chains with gaps; default 0 .. L - 1

    Returns a dict with ``logits`` (B, L, num_tokens), ``contacts`` (B, L, L) probabilities
    (symmetric, zero on padding) and ``embedding`` (B, dim), the mean over the real residues.
    """

    def __init__(self, num_tokens=25, dim=64, num_heads=4, num_layers=3, dropout=0.0, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.embed = nn.Embedding(num_tokens, dim, padding_idx=pad_id)
        self.layers = nn.ModuleList([ProteinLayer(dim, num_heads, dropout) for _ in range(num_layers)])
        self.norm = nn.LayerNorm(dim)
        self.lm_head = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim), nn.Linear(dim, num_tokens))
        self.contact_head = nn.Linear(num_layers * num_heads, 1)

    def forward(self, tokens, residue_index: Optional[torch.Tensor] = None):
        pad = tokens.eq(self.pad_id)
        if residue_index is None:
            residue_index = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        x = self.embed(tokens)
        maps = []
        for layer in self.layers:
            x, probs = layer(x, residue_index, pad)
            maps.append(probs)
        x = self.norm(x)

        real = ~pad
        pair = (real[:, :, None] & real[:, None, :]).to(x.dtype)
        attn = torch.cat(maps, dim=1) * pair[:, None]  # (B, layers * heads, L, L)
        attn = apc(attn + attn.transpose(-1, -2))
        contacts = torch.sigmoid(self.contact_head(attn.permute(0, 2, 3, 1)).squeeze(-1)) * pair

        w = real.unsqueeze(-1).to(x.dtype)
        embedding = (x * w).sum(dim=1) / w.sum(dim=1).clamp(min=1.0)
        return {"logits": self.lm_head(x), "contacts": contacts, "embedding": embedding}
