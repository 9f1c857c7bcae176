import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormAttention(nn.Module):
    """Query-key normalised attention (Henry et al. 2020).

    Queries and keys are L2-normalised per head, the dot product becomes a cosine similarity
    that is multiplied by a learned temperature.
    """

    def __init__(self, dim=64, num_heads=4, init_scale=10.0, causal=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.g = nn.Parameter(torch.full((num_heads, 1, 1), init_scale))
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.to_qkv(x).view(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        q = F.normalize(q, dim=-2)
        k = F.normalize(k, dim=-2)

        logits = torch.matmul(q, k.mT) * self.g
        if self.causal:
            blocked = torch.ones(n, n, device=x.device, dtype=torch.bool).triu(diagonal=1)
            logits = logits.masked_fill(blocked, torch.finfo(logits.dtype).min)
        weights = logits.softmax(-1)
        y = torch.matmul(weights, v)
        return self.to_out(y.transpose(1, 2).flatten(2))
