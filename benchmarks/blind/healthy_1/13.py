from typing import Optional

import torch
from torch import nn
import torch.nn.functional as F


class GemmaRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        out = x.float()
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + self.eps)
        # Gemma keeps weight - 1, a zero weight is the identity gain
        return (out * (1.0 + self.weight.float())).type_as(x)


def rope(x: torch.Tensor, positions: torch.Tensor, base: float) -> torch.Tensor:
    half = x.shape[-1] // 2
    inv_freq = base ** -(torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = positions.float()[:, None] * inv_freq
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Gemma2DecoderLayer(nn.Module):
    """
    One Gemma-2 layer.

    * sandwich norms: each sub-layer is normalised before *and* after, the residual itself never is;
    * scores are scaled by ``query_pre_attn_scalar ** -0.5`` and soft-capped before masking;
    * ``sliding_window=w`` lets a token see itself and the ``w - 1`` tokens before it, ``None`` is global.

    ``padding_mask``: ``(batch, seq)`` bool, True for real tokens.
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        intermediate_size: int = 256,
        query_pre_attn_scalar: Optional[float] = None,
        attn_logit_softcapping: Optional[float] = 50.0,
        sliding_window: Optional[int] = 8,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.scaling = (query_pre_attn_scalar or head_dim) ** -0.5
        self.softcap = attn_logit_softcapping
        self.sliding_window = sliding_window
        self.rope_theta = rope_theta

        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.input_layernorm = GemmaRMSNorm(hidden_size)
        self.post_attention_layernorm = GemmaRMSNorm(hidden_size)
        self.pre_feedforward_layernorm = GemmaRMSNorm(hidden_size)
        self.post_feedforward_layernorm = GemmaRMSNorm(hidden_size)

    def attention(self, x, padding_mask):
        b, t, _ = x.shape
        pos = torch.arange(t, device=x.device)
        q = self.q_proj(x).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q, k = rope(q, pos, self.rope_theta), rope(k, pos, self.rope_theta)
        rep = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)

        logits = q @ k.transpose(-1, -2) * self.scaling
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)

        dist = pos[:, None] - pos[None, :]
        visible = dist >= 0
        if self.sliding_window is not None:
            visible = visible & (dist < self.sliding_window)
        visible = visible[None, None]
        if padding_mask is not None:
            visible = visible & padding_mask[:, None, None, :].bool()
            visible = visible | (dist == 0)
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        probs = F.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj((probs @ v).transpose(1, 2).reshape(b, t, -1))

    def forward(self, hidden_states: torch.Tensor, padding_mask: Optional[torch.Tensor] = None):
        h = self.attention(self.input_layernorm(hidden_states), padding_mask)
        hidden_states = hidden_states + self.post_attention_layernorm(h)
        h = self.pre_feedforward_layernorm(hidden_states)
        h = self.down_proj(F.gelu(self.gate_proj(h), approximate="tanh") * self.up_proj(h))
        return hidden_states + self.post_feedforward_layernorm(h)
