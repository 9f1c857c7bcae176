import torch
import torch.nn as nn


class VarlenAttention(nn.Module):
    """Bidirectional attention over a packed batch without a batch axis.

    ``x`` is (total_tokens, dim), the sequences lie one behind the other and ``cu_seqlens``
    (num_seqs + 1,) holds their boundaries, as in flash-attn: ``[0, len0, len0 + len1, ...]``.
    Rotary positions restart at every boundary.
    """

    def __init__(self, dim=64, num_heads=4, theta=10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.Wo = nn.Linear(dim, dim, bias=False)
        inv = theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv, persistent=False)

    def _rope(self, x, pos):
        ang = torch.outer(pos.float(), self.inv_freq).unsqueeze(1)
        cos, sin = ang.cos().to(x.dtype), ang.sin().to(x.dtype)
        lo, hi = x.chunk(2, dim=-1)
        return torch.cat([lo * cos - hi * sin, hi * cos + lo * sin], dim=-1)

    def forward(self, x, cu_seqlens):
        total = x.size(0)
        index = torch.arange(total, device=x.device)
        cu = cu_seqlens.to(device=x.device, dtype=torch.long)
        # number of sequence ends at or before the token = its sequence number
        seq_id = torch.searchsorted(cu[1:].contiguous(), index, right=True)
        pos = index - cu[seq_id]

        q, k, v = self.Wqkv(x).view(total, 3, self.num_heads, self.head_dim).unbind(1)
        q, k = self._rope(q, pos), self._rope(k, pos)

        scores = torch.einsum("ihd,jhd->hij", q, k) / self.head_dim ** 0.5
        other = seq_id[:, None] != seq_id[None, :]
        scores = scores.masked_fill(other, float("-inf"))
        out = torch.einsum("hij,jhd->ihd", scores.softmax(dim=-1), v)
        return self.Wo(out.reshape(total, -1))
