import torch
import torch.nn as nn
import torch.nn.functional as F


class MSAColumnAttention(nn.Module):
    """Gated column-wise attention over an alignment.

    Args:
        msa: [B, S, L, C] (sequences, residues)
        mask: [B, S, L] bool, True for observed residues
    """

    def __init__(self, dim=32, heads=4, dim_head=8):
        super().__init__()
        self.heads = heads
        inner = heads * dim_head
        self.norm = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.gate = nn.Linear(dim, inner)
        self.out = nn.Linear(inner, dim)
        nn.init.zeros_(self.gate.weight)
        nn.init.ones_(self.gate.bias)

    def _attend(self, x, mask):
        n, s, _ = x.shape
        q = self.to_q(x)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.view(n, s, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        bias = None
        if mask is not None:
            bias = torch.zeros(n, 1, 1, s, dtype=q.dtype, device=q.device)
            bias = bias.masked_fill(~mask[:, None, None, :], -1e4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        y = y.transpose(1, 2).reshape(n, s, -1)
        return self.out(y * self.gate(x).sigmoid())

    def forward(self, msa, mask=None):
        b, s, l, c = msa.shape
        x = self.norm(msa)
        x = x.transpose(1, 2).reshape(b * l, s, c)
        if mask is not None:
            mask = mask.reshape(b * l, s)
        y = self._attend(x, mask)
        return y.view(b, l, s, c).transpose(1, 2)
