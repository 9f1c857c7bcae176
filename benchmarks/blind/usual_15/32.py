import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedAttention(nn.Module):
    """Several documents in one row.

    seg: (batch, time) integers, constant within a document; 0 marks filler at the
    end of the row. A token sees earlier tokens of its own document. Filler has the
    number 0 in common and attends to filler, so its rows are finite and useless.
    The learned position of a token counts from the start of its document.
    """

    def __init__(self, dim=64, num_heads=4, max_len=256):
        super().__init__()
        self.num_heads = num_heads
        self.pos = nn.Embedding(max_len, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    @staticmethod
    def positions(seg):
        idx = torch.arange(seg.size(1), device=seg.device).expand_as(seg)
        first = torch.ones_like(seg, dtype=torch.bool)
        first[:, 1:] = seg[:, 1:] != seg[:, :-1]
        start = torch.where(first, idx, torch.zeros_like(idx)).cummax(dim=1).values
        return idx - start

    def forward(self, x, seg):
        b, t, c = x.shape
        x = x + self.pos(self.positions(seg))
        q, k, v = self.qkv(x).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        same = seg.unsqueeze(2) == seg.unsqueeze(1)
        past = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(same & past).unsqueeze(1))
        return self.proj(y.transpose(1, 2).reshape(b, t, c))
