import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)
        self.cache = None

    def split(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q, k, v, mask=None):
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class SelfAttention(CachedAttention):
    def forward(self, x, use_cache):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if use_cache:
            if self.cache is not None:
                k = torch.cat([self.cache[0], k], dim=2)
                v = torch.cat([self.cache[1], v], dim=2)
            self.cache = (k, v)
        n, m = q.size(2), k.size(2)
        mask = torch.ones(n, m, dtype=torch.bool, device=x.device).tril(m - n)
        return self.attend(q, k, v, mask)


class CrossAttention(CachedAttention):
    def forward(self, x, audio, use_cache):
        if use_cache and self.cache is not None:
            k, v = self.cache
        else:
            k, v = self.split(self.k(audio)), self.split(self.v(audio))
            if use_cache:
                self.cache = (k, v)
        return self.attend(self.split(self.q(x)), k, v)


class SpeechDecoderLayer(nn.Module):
    """Decoder layer of an encoder-decoder recogniser.

    During decoding call it with ``use_cache=True`` and only the new tokens; the keys and
    values of the audio are computed once per utterance. ``reset()`` must be called
    before the next utterance.
    """

    def __init__(self, dim=64, num_heads=4, ff_mult=4):
        super().__init__()
        self.self_attn = SelfAttention(dim, num_heads)
        self.cross_attn = CrossAttention(dim, num_heads)
        self.ln1, self.ln2, self.ln3 = nn.LayerNorm(dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, ff_mult * dim), nn.GELU(), nn.Linear(ff_mult * dim, dim))

    def reset(self):
        for module in self.children():
            if isinstance(module, SelfAttention):
                module.cache = None

    def forward(self, x, audio, use_cache=False):
        x = x + self.self_attn(self.ln1(x), use_cache)
        x = x + self.cross_attn(self.ln2(x), audio, use_cache)
        return x + self.mlp(self.ln3(x))
