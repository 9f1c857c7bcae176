import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedCausalAttention(nn.Module):
    """Causal attention over rows into which several documents are packed.

    segment_ids: (B, T) integers; tokens see earlier tokens of the same segment only. -1 marks
    filler, whose output is zero.

    The rotary positions run through the whole row. Rotary logits depend on differences of
    positions, so a restart at every document would give the same result.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, theta: float = 10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer(
            "freq", theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim), persistent=False
        )

    def _rope(self, x):
        angle = torch.arange(x.size(2), device=x.device).float()[:, None] * self.freq
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, x, segment_ids=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self._rope(q), self._rope(k)

        if segment_ids is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            same = segment_ids[:, :, None] == segment_ids[:, None, :]
            causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=(same & causal).unsqueeze(1))

        y = self.out(y.transpose(1, 2).reshape(B, T, C))
        if segment_ids is not None:
            y = y.masked_fill((segment_ids < 0).unsqueeze(-1), 0.0)
        return y
