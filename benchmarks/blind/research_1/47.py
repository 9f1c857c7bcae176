from typing import Optional

import torch
from torch import nn


class GemmaRMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        output = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        # x * (1 + w): the weight is stored as the offset from one
        return (output * (1.0 + self.weight.float())).type_as(x)


class Gemma2Attention(nn.Module):
    def __init__(self, hidden_size, num_heads, num_kv_heads, head_dim, query_pre_attn_scalar, softcap, window, theta):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.scaling = query_pre_attn_scalar ** -0.5
        self.softcap = softcap
        self.sliding_window = window
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        inv_freq = theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rope(self, x):
        t = torch.arange(x.shape[-2], device=x.device).float()
        emb = torch.outer(t, self.inv_freq).repeat(1, 2)
        x1, x2 = x.chunk(2, dim=-1)
        return x * emb.cos().to(x.dtype) + torch.cat((-x2, x1), dim=-1) * emb.sin().to(x.dtype)

    def forward(self, x, attention_mask=None):
        b, n, _ = x.shape
        q = self.rope(self.q_proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2))
        k = self.rope(self.k_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2))
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.head_dim).transpose(1, 2)

        # fold the query heads of a group next to their kv head: (b, kv, group, n, d)
        q = q.reshape(b, self.num_kv_heads, -1, n, self.head_dim)
        scores = torch.einsum("bkgid,bkjd->bkgij", q, k) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap

        distance = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)[None, :]
        keep = distance >= 0
        if self.sliding_window is not None:
            keep = keep & (distance < self.sliding_window)
        keep = keep[None, None, None]
        if attention_mask is not None:
            keep = keep & attention_mask[:, None, None, None, :].bool()
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)

        probs = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.einsum("bkgij,bkjd->bikgd", probs, v).reshape(b, n, -1)
        return self.o_proj(out)


class Gemma2DecoderLayer(nn.Module):
    """Decoder layer with norms before *and* after both sublayers. Layers with an even index use a
    sliding window, the others attend globally. Scores are scaled by ``query_pre_attn_scalar ** -0.5``,
    which is not tied to the head size, and soft-capped before masking.

    ``attention_mask``: (batch, seq), 1 for tokens, 0 for padding on the right.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, num_kv_heads: int = 2, head_dim: int = 32,
                 intermediate_size: int = 128, query_pre_attn_scalar: int = 16, attn_logit_softcapping: float = 50.0,
                 sliding_window: int = 8, rope_theta: float = 10000.0, layer_idx: int = 0):
        super().__init__()
        window = sliding_window if layer_idx % 2 == 0 else None
        self.self_attn = Gemma2Attention(hidden_size, num_heads, num_kv_heads, head_dim, query_pre_attn_scalar,
                                         attn_logit_softcapping, window, rope_theta)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.input_layernorm = GemmaRMSNorm(hidden_size)
        self.post_attention_layernorm = GemmaRMSNorm(hidden_size)
        self.pre_feedforward_layernorm = GemmaRMSNorm(hidden_size)
        self.post_feedforward_layernorm = GemmaRMSNorm(hidden_size)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        h = self.self_attn(self.input_layernorm(hidden_states), attention_mask)
        hidden_states = hidden_states + self.post_attention_layernorm(h)
        h = self.pre_feedforward_layernorm(hidden_states)
        h = self.down_proj(nn.functional.gelu(self.gate_proj(h), approximate="tanh") * self.up_proj(h))
        return hidden_states + self.post_feedforward_layernorm(h)
