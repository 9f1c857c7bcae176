import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedSelfAttention(nn.Module):
    """Causal attention over several sequences packed into one row, without flash-attn.

    Args of forward:
        x: (total_tokens, dim), sequences one after another
        cu_seqlens: (num_seqs + 1,) cumulative lengths, starting with 0 and ending with total_tokens
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, rope_theta: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rope(self, x, pos):
        ang = pos[:, None].float() * self.inv_freq
        cos, sin = ang.cos()[:, None], ang.sin()[:, None]
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        total = x.shape[0]
        idx = torch.arange(total, device=x.device)
        seg = torch.searchsorted(cu_seqlens[1:].to(idx.dtype).contiguous(), idx)
        pos = idx - cu_seqlens.to(idx.dtype)[seg]

        q, k, v = self.qkv_proj(x).view(total, 3, self.num_heads, self.head_dim).unbind(1)
        q, k = self._rope(q, pos), self._rope(k, pos)
        mask = (seg[:, None] == seg[None, :]) & (idx[:, None] >= idx[None, :])
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.squeeze(0).transpose(0, 1).reshape(total, -1))
