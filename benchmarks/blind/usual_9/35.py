import torch
import torch.nn.functional as F
from torch import nn


class PackedCausalAttention(nn.Module):
    """Causal attention on packed rows: several documents lie one after another in the same row.

    segment_ids: (batch, length), 1, 2, 3, ... for the documents and 0 for the padding behind the last one. A token
    sees the earlier tokens of its own document. Padding rows attend to padding, so that no softmax is empty, and
    are zeroed in the output.
    """

    def __init__(self, dim=256, num_heads=8, rope_base=10000.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)
        exponent = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        self.register_buffer("inv_freq", rope_base ** -exponent, persistent=False)

    @staticmethod
    def positions_within_segments(segment_ids):
        index = torch.arange(segment_ids.size(1), device=segment_ids.device).expand_as(segment_ids)
        starts = torch.ones_like(segment_ids, dtype=torch.bool)
        starts[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
        first = torch.where(starts, index, torch.zeros_like(index)).cummax(dim=1).values
        return index - first

    def rotary(self, x, positions):
        angles = (positions.float()[..., None] * self.inv_freq.float()).unsqueeze(1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)

    def forward(self, x, segment_ids=None):
        b, n, c = x.shape
        if segment_ids is None:
            segment_ids = torch.ones(b, n, dtype=torch.long, device=x.device)

        q, k, v = self.wqkv(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        positions = self.positions_within_segments(segment_ids)
        q, k = self.rotary(q, positions), self.rotary(k, positions)

        same = segment_ids[:, :, None] == segment_ids[:, None, :]
        causal = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        mask = (same & causal).unsqueeze(1)

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.wo(y.transpose(1, 2).reshape(b, n, c))
        return y * (segment_ids != 0).unsqueeze(-1).to(y.dtype)
