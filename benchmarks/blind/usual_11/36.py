import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """
    Attention with a sigmoid in place of the softmax (Ramapuram et al., 2024).

    The weights of a row are independent and do not add up to one. The logits carry the bias -log(n) with
    n the number of visible keys, which keeps the size of the output about that of softmax attention.

    mask: optional bool (batch, n), True for real tokens.
    """

    def __init__(self, dim=64, num_heads=4, causal=False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, n, dim = x.shape
        q, k, v = (
            t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for t in self.in_proj(x).chunk(3, dim=-1)
        )

        visible = torch.ones(b, 1, n, n, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = visible.tril()
        if mask is not None:
            visible = visible & mask[:, None, None, :]
        count = visible.sum(dim=-1, keepdim=True).clamp(min=1)

        logits = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        weights = torch.sigmoid(logits - count.to(logits.dtype).log())
        weights = weights.masked_fill(~visible, 0.0)

        out = (weights @ v).transpose(1, 2).reshape(b, n, dim)
        return self.out_proj(out)
