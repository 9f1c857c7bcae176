from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class GemmaConfig:
    vocab_size: int = 128
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 128
    query_pre_attn_scalar: float = 32.0
    attn_logit_softcapping: float = 50.0
    sliding_window: int = 8
    rope_theta: float = 10000.0


class GemmaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))  # stored as an offset from one

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class GemmaAttention(nn.Module):
    def __init__(self, cfg, layer_idx):
        super().__init__()
        self.cfg = cfg
        # even layers are local, odd layers are global
        self.window = cfg.sliding_window if layer_idx % 2 == 0 else None
        self.q_proj = nn.Linear(cfg.hidden_size, cfg.num_heads * cfg.head_dim, bias=False)
        self.k_proj = nn.Linear(cfg.hidden_size, cfg.num_kv_heads * cfg.head_dim, bias=False)
        self.v_proj = nn.Linear(cfg.hidden_size, cfg.num_kv_heads * cfg.head_dim, bias=False)
        self.o_proj = nn.Linear(cfg.num_heads * cfg.head_dim, cfg.hidden_size, bias=False)
        inv_freq = cfg.rope_theta ** (-torch.arange(0, cfg.head_dim, 2).float() / cfg.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotary(self, x):
        angle = torch.outer(torch.arange(x.size(2), device=x.device).float(), self.inv_freq)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x):
        cfg, (B, T, _) = self.cfg, x.shape
        q = self.q_proj(x).view(B, T, cfg.num_heads, cfg.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, cfg.num_kv_heads, cfg.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(B, T, cfg.num_kv_heads, cfg.head_dim).transpose(1, 2)
        q, k = self.rotary(q), self.rotary(k)
        groups = cfg.num_heads // cfg.num_kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)

        scores = q @ k.transpose(-1, -2) * cfg.query_pre_attn_scalar ** -0.5
        scores = torch.tanh(scores / cfg.attn_logit_softcapping) * cfg.attn_logit_softcapping
        i = torch.arange(T, device=x.device)
        lag = i[:, None] - i[None, :]
        keep = lag >= 0
        if self.window is not None:
            keep = keep & (lag < self.window)
        probs = scores.masked_fill(~keep, float("-inf")).float().softmax(dim=-1).type_as(v)
        return self.o_proj((probs @ v).transpose(1, 2).reshape(B, T, -1))


class GemmaLayer(nn.Module):
    def __init__(self, cfg, layer_idx):
        super().__init__()
        self.attn = GemmaAttention(cfg, layer_idx)
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)
        self.pre_attn, self.post_attn, self.pre_ffn, self.post_ffn = (GemmaRMSNorm(cfg.hidden_size) for _ in range(4))

    def forward(self, x):
        x = x + self.post_attn(self.attn(self.pre_attn(x)))
        h = self.pre_ffn(x)
        h = self.down_proj(nn.functional.gelu(self.gate_proj(h), approximate="tanh") * self.up_proj(h))
        return x + self.post_ffn(h)


class GemmaBackbone(nn.Module):
    """Decoder with alternating local and global layers, norms before and after each sublayer.

    The query scale is 1/sqrt(query_pre_attn_scalar), which is not the head size. A local layer
    sees ``sliding_window`` tokens, the current one included.
    """

    def __init__(self, config: GemmaConfig = GemmaConfig()):
        super().__init__()
        self.embed_scale = config.hidden_size ** 0.5
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(GemmaLayer(config, i) for i in range(config.num_layers))
        self.norm = GemmaRMSNorm(config.hidden_size)

    def forward(self, input_ids):
        x = self.embed_tokens(input_ids) * self.embed_scale
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
