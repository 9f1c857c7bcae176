import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedCausalAttention(nn.Module):
    """Causal attention over rows into which several documents are packed.

    segment_ids: (batch, length) integers; documents of a row are numbered 1, 2, ... and 0 is padding.
    Positions restart at zero with each document. Padding forms a segment of its own, its outputs are zeroed.
    Without segment_ids a row is one document.
    """

    def __init__(self, dim=128, num_heads=4, max_len=512):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.pos_emb = nn.Embedding(max_len, dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    @staticmethod
    def positions_in_segment(segment_ids):
        n = segment_ids.size(1)
        index = torch.arange(n, device=segment_ids.device).expand_as(segment_ids)
        is_start = torch.ones_like(segment_ids, dtype=torch.bool)
        is_start[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
        starts = torch.where(is_start, index, torch.zeros_like(index)).cummax(dim=1).values
        return index - starts

    def forward(self, x, segment_ids=None):
        b, n, c = x.shape
        if segment_ids is None:
            segment_ids = torch.ones(b, n, dtype=torch.long, device=x.device)

        h = x + self.pos_emb(self.positions_in_segment(segment_ids))
        q, k, v = self.qkv(h).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=(same_segment & causal)[:, None])

        y = self.proj(y.transpose(1, 2).reshape(b, n, c))
        return y * (segment_ids != 0).unsqueeze(-1).to(y.dtype)
