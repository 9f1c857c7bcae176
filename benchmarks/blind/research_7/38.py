import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedAttention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.k_cache = None
        self.v_cache = None

    def clear(self):
        self.k_cache = None
        self.v_cache = None

    def split(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def project(self, source):
        return self.split(self.k_proj(source)), self.split(self.v_proj(source))

    def attend(self, x, k, v, mask=None):
        y = F.scaled_dot_product_attention(self.split(self.q_proj(x)), k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class SpeechDecoderLayer(nn.Module):
    """Transformer decoder layer for attention-based speech recognition.

    With ``use_cache=True`` the layer decodes incrementally: pass the new tokens only and call
    ``reset_cache()`` before each utterance.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, ffn_dim: int = 256):
        super().__init__()
        self.self_attn = CachedAttention(dim, num_heads)
        self.src_attn = CachedAttention(dim, num_heads)
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.norm3 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.ReLU(), nn.Linear(ffn_dim, dim))

    def reset_cache(self):
        self.self_attn.clear()

    def forward(self, tgt, memory, use_cache: bool = False):
        h = self.norm1(tgt)
        k, v = self.self_attn.project(h)
        if use_cache:
            if self.self_attn.k_cache is not None:
                k = torch.cat([self.self_attn.k_cache, k], dim=2)
                v = torch.cat([self.self_attn.v_cache, v], dim=2)
            self.self_attn.k_cache, self.self_attn.v_cache = k, v
        T, S = tgt.size(1), k.size(2)
        causal = torch.ones(T, S, dtype=torch.bool, device=tgt.device).tril(S - T)
        x = tgt + self.self_attn.attend(h, k, v, causal)

        h = self.norm2(x)
        if use_cache and self.src_attn.k_cache is not None:
            k, v = self.src_attn.k_cache, self.src_attn.v_cache
        else:
            k, v = self.src_attn.project(memory)
            if use_cache:
                self.src_attn.k_cache, self.src_attn.v_cache = k, v
        x = x + self.src_attn.attend(h, k, v)

        return x + self.ffn(self.norm3(x))
