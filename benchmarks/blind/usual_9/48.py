from typing import Optional

import torch
from torch import nn


class SoftcapAttention(nn.Module):
    """Gemma-2 style attention.

    - ``query_pre_attn_scalar`` replaces head_dim in the scale; it need not equal the head dimension.
    - The scores are capped smoothly to (-cap, cap) by cap * tanh(s / cap), before the mask is applied.
    - n_heads * head_dim may differ from hidden_size.
    - Keys and values are never repeated: the query heads are viewed as (kv heads, group).
    """

    def __init__(
        self,
        hidden_size: int = 192,
        n_heads: int = 8,
        n_kv_heads: int = 4,
        head_dim: int = 32,
        query_pre_attn_scalar: float = 24.0,
        attn_logit_softcapping: Optional[float] = 50.0,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv = n_kv_heads
        self.group = n_heads // n_kv_heads
        self.head_dim = head_dim
        self.scaling = query_pre_attn_scalar ** -0.5
        self.softcap = attn_logit_softcapping
        self.theta = rope_theta
        self.q_proj = nn.Linear(hidden_size, n_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, n_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, n_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(n_heads * head_dim, hidden_size, bias=False)

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        # x: (batch, length, heads, head_dim)
        half = self.head_dim // 2
        freq = self.theta ** (-torch.arange(half, device=x.device).float() / half)
        angle = torch.arange(x.shape[1], device=x.device).float()[:, None] * freq[None, :]
        cos, sin = angle.cos()[:, None, :].to(x.dtype), angle.sin()[:, None, :].to(x.dtype)
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """attention_mask: (batch, length), 1 for tokens."""
        b, t, _ = hidden_states.shape
        q = self.rope(self.q_proj(hidden_states).view(b, t, self.n_heads, self.head_dim))
        k = self.rope(self.k_proj(hidden_states).view(b, t, self.n_kv, self.head_dim))
        v = self.v_proj(hidden_states).view(b, t, self.n_kv, self.head_dim)

        q = q.view(b, t, self.n_kv, self.group, self.head_dim)
        scores = torch.einsum("btkgd,bskd->bkgts", q, k) * self.scaling
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap

        allowed = torch.ones(t, t, dtype=torch.bool, device=scores.device).tril()[None]
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, :].bool()
        scores = scores.masked_fill(~allowed[:, None, None], torch.finfo(scores.dtype).min)

        probs = scores.float().softmax(dim=-1).to(v.dtype)
        out = torch.einsum("bkgts,bskd->btkgd", probs, v)
        return self.o_proj(out.reshape(b, t, self.n_heads * self.head_dim))
