import torch
import torch.nn as nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020): linear maps across the head axis
    before and after the softmax.

    Args:
        dim: model width.
        num_heads: number of heads.
        causal: hide later positions.
    """

    def __init__(self, dim=64, num_heads=8, causal=True, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.scale = (dim // num_heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.mix_logits = nn.Linear(num_heads, num_heads, bias=False)
        self.mix_weights = nn.Linear(num_heads, num_heads, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)

        logits = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        if self.causal:
            hidden = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            logits = logits.masked_fill(hidden, -1e9)

        logits = self.mix_logits(logits.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = logits.softmax(dim=-1)
        weights = self.mix_weights(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.dropout(weights)

        out = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, d)
        return self.to_out(out)
