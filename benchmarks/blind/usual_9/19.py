import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, allowed):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
        scores = scores.masked_fill(~allowed, float("-inf"))
        y = scores.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, allowed):
        x = x + self.attn(self.ln1(x), allowed)
        return x + self.mlp(self.ln2(x))


class TinyDecoderLM(nn.Module):
    """Decoder-only language model. Prompts of different lengths are batched with padding on the left, so that
    the last column always holds the token to continue from."""

    def __init__(self, vocab_size=500, dim=64, heads=4, layers=2, max_len=128, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, input_ids):
        b, t = input_ids.shape
        keep = input_ids != self.pad_id
        positions = (keep.long().cumsum(dim=1) - 1).clamp(min=0)

        causal = torch.ones(t, t, dtype=torch.bool, device=input_ids.device).tril()
        allowed = causal[None, None] & keep[:, None, None, :]

        x = self.tok(input_ids) + self.pos(positions)
        for block in self.blocks:
            x = block(x, allowed)
        return self.lm_head(self.ln_f(x))

    @torch.no_grad()
    def next_token(self, input_ids):
        probs = F.softmax(self(input_ids)[:, -1], dim=-1)
        return probs.argmax(dim=-1)
