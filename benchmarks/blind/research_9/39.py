from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class InterleavedConfig:
    hidden_size: int = 64
    num_heads: int = 4
    num_layers: int = 4
    vocab_size: int = 256
    sliding_window: int = 4
    global_every: int = 2
    rope_theta: float = 10000.0


class DecoderAttention(nn.Module):
    def __init__(self, cfg: InterleavedConfig, layer_idx: int):
        super().__init__()
        self.heads = cfg.num_heads
        self.d = cfg.hidden_size // cfg.num_heads
        self.is_global = (layer_idx + 1) % cfg.global_every == 0
        self.window = cfg.sliding_window
        self.qkv_proj = nn.Linear(cfg.hidden_size, 3 * cfg.hidden_size, bias=False)
        self.o_proj = nn.Linear(cfg.hidden_size, cfg.hidden_size, bias=False)
        inv = cfg.rope_theta ** (-torch.arange(0, self.d, 2).float() / self.d)
        self.register_buffer("inv_freq", inv, persistent=False)

    def rope(self, x):
        ang = torch.outer(torch.arange(x.shape[2], device=x.device).float(), self.inv_freq)
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv_proj(x).view(B, T, 3, self.heads, self.d).permute(2, 0, 3, 1, 4)
        q, k = self.rope(q), self.rope(k)
        pos = torch.arange(T, device=x.device)
        distance = pos[:, None] - pos[None, :]
        if self.is_global:
            allowed = distance >= 0
        else:
            allowed = distance < self.window
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))


class DecoderLayer(nn.Module):
    def __init__(self, cfg: InterleavedConfig, layer_idx: int):
        super().__init__()
        self.input_norm = nn.LayerNorm(cfg.hidden_size)
        self.attn = DecoderAttention(cfg, layer_idx)
        self.post_norm = nn.LayerNorm(cfg.hidden_size)
        self.up = nn.Linear(cfg.hidden_size, 8 * cfg.hidden_size, bias=False)
        self.down = nn.Linear(4 * cfg.hidden_size, cfg.hidden_size, bias=False)

    def forward(self, x):
        x = x + self.attn(self.input_norm(x))
        gate, up = self.up(self.post_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class InterleavedWindowLM(nn.Module):
    """Causal language model whose layers alternate between a sliding window and full attention."""

    def __init__(self, cfg: InterleavedConfig = InterleavedConfig()):
        super().__init__()
        self.embed = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(cfg, i) for i in range(cfg.num_layers)])
        self.norm = nn.LayerNorm(cfg.hidden_size)
        self.lm_head = nn.Linear(cfg.hidden_size, cfg.vocab_size, bias=False)
        self.lm_head.weight = self.embed.weight

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))
