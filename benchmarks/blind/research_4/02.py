from typing import Optional

import torch
import torch.nn as nn


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class SoftCappedAttention(nn.Module):
    """Self-attention in the manner of Gemma 2.

    * the query scale is ``query_pre_attn_scalar ** -0.5``, a hyper-parameter of the checkpoint which is not the
      head size;
    * the logits pass through ``cap * tanh(logits / cap)``;
    * even layers see only the last ``sliding_window`` positions, odd layers see all of them.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_heads: int = 8,
        num_kv_heads: int = 4,
        head_dim: int = 64,
        query_pre_attn_scalar: float = 144.0,
        logit_cap: float = 50.0,
        sliding_window: int = 8,
        layer_idx: int = 0,
        rope_theta: float = 10000.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scaling = query_pre_attn_scalar**-0.5
        self.logit_cap = logit_cap
        self.window = sliding_window if layer_idx % 2 == 0 else None
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        inv_freq = rope_theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, x):
        t = torch.arange(x.size(2), device=x.device, dtype=torch.float32)
        angles = torch.outer(t, self.inv_freq)
        angles = torch.cat((angles, angles), dim=-1)
        return x * angles.cos().to(x.dtype) + rotate_half(x) * angles.sin().to(x.dtype)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """``attention_mask``: ``[batch, seq]``, nonzero for tokens and 0 for padding."""
        bsz, seq, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, seq, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, seq, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, seq, self.num_kv_heads, self.head_dim).transpose(1, 2)
        q, k = self._rope(q), self._rope(k)

        groups = self.num_heads // self.num_kv_heads
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)

        logits = torch.matmul(q, k.transpose(-1, -2)) * self.scaling
        logits = self.logit_cap * torch.tanh(logits / self.logit_cap)

        pos = torch.arange(seq, device=q.device)
        dist = pos[:, None] - pos[None, :]
        visible = dist >= 0
        if self.window is not None:
            visible = visible & (dist < self.window)
        visible = visible[None, None]
        if attention_mask is not None:
            visible = visible & attention_mask.bool()[:, None, None, :]
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)

        probs = torch.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(bsz, seq, -1)
        return self.o_proj(out)
