import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)
        self._kv = None

    def _split(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x, memory, memory_mask=None):
        if self.training:
            k, v = self._split(self.k(memory)), self._split(self.v(memory))
        else:
            if self._kv is None:
                self._kv = (self._split(self.k(memory)), self._split(self.v(memory)))
            k, v = self._kv
        mask = None if memory_mask is None else memory_mask[:, None, None, :]
        y = F.scaled_dot_product_attention(self._split(self.q(x)), k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class SpeechDecoderLayer(nn.Module):
    """Decoder layer of the recogniser.

    The projected encoder output is kept while a transcript is decoded token by token; ``past`` is the self-attention
    cache, None at the first step of an utterance.

    tokens: [B, T, dim], memory: [B, S, dim], memory_mask: [B, S] True for real frames
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.ln_self = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln_cross = nn.LayerNorm(dim)
        self.cross = CrossAttention(dim, num_heads)
        self.ln_mlp = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, tokens, memory, memory_mask=None, past=None):
        b, t, d = tokens.shape
        q, k, v = self.qkv(self.ln_self(tokens)).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        s = k.size(2)
        causal = torch.ones(t, s, dtype=torch.bool, device=tokens.device).tril(s - t)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=causal)
        x = tokens + self.proj(y.transpose(1, 2).reshape(b, t, d))
        x = x + self.cross(self.ln_cross(x), memory, memory_mask)
        x = x + self.mlp(self.ln_mlp(x))
        return x, (k, v)
