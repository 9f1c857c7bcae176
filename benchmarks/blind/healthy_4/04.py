from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class ZeroCenteredRMSNorm(nn.Module):
    """RMSNorm whose gain is stored as an offset from one."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + self.eps)
        return (h * (1.0 + self.weight.float())).type_as(x)


class GatedAttention(nn.Module):
    """Causal GQA whose output is gated elementwise by a sigmoid of the input.

    The query projection is twice as wide as usual: for every head the first ``head_dim``
    channels are the query, the last ``head_dim`` channels are the gate logits.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_heads: int = 8,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        rotary_fraction: float = 0.25,
        rope_theta: float = 10000.0,
        eps: float = 1e-6,
    ):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.rotary_dim = int(head_dim * rotary_fraction)
        assert self.rotary_dim % 2 == 0

        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim * 2, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        self.q_norm = ZeroCenteredRMSNorm(head_dim, eps)
        self.k_norm = ZeroCenteredRMSNorm(head_dim, eps)

        inv_freq = rope_theta ** (-torch.arange(0, self.rotary_dim, 2).float() / self.rotary_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotary(self, length: int, offset: int, device) -> Tuple[torch.Tensor, torch.Tensor]:
        t = torch.arange(offset, offset + length, device=device, dtype=torch.float32)
        freqs = torch.outer(t, self.inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()

    def apply_rotary(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x_rot, x_pass = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        a, b = x_rot.chunk(2, dim=-1)
        x_rot = x_rot * cos.to(x.dtype) + torch.cat((-b, a), dim=-1) * sin.to(x.dtype)
        return torch.cat((x_rot, x_pass), dim=-1)

    def forward(
        self,
        x: torch.Tensor,
        past_kv: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
    ) -> Tuple[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
        b, t, _ = x.shape
        past_len = 0 if past_kv is None else past_kv[0].shape[2]

        q, gate = self.q_proj(x).view(b, t, self.num_heads, 2 * self.head_dim).chunk(2, dim=-1)
        gate = gate.reshape(b, t, -1)
        q = self.q_norm(q).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, self.num_kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)

        cos, sin = self.rotary(t, past_len, x.device)
        q, k = self.apply_rotary(q, cos, sin), self.apply_rotary(k, cos, sin)

        if past_kv is not None:
            k = torch.cat((past_kv[0], k), dim=2)
            v = torch.cat((past_kv[1], v), dim=2)
        present = (k, v)

        rep = self.num_heads // self.num_kv_heads
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
        keep = torch.ones(t, past_len + t, dtype=torch.bool, device=x.device).tril(past_len)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)

        out = out.transpose(1, 2).reshape(b, t, -1) * torch.sigmoid(gate)
        return self.o_proj(out), present
