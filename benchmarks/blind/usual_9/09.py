import torch
from torch import nn


class SigmoidAttention(nn.Module):
    """Sigmoid self-attention (Ramapuram et al., 2024).

    Each weight is an independent sigmoid and the rows are not normalised. To start at the size of a softmax row,
    the logits are shifted by -log(n), n being the number of keys that the query may see.
    """

    def __init__(self, dim=256, num_heads=4, causal=True, bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=bias)
        self.to_out = nn.Linear(dim, dim, bias=bias)

    def forward(self, x, key_mask=None):
        """key_mask: (batch, length) bool, True for real tokens."""
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))

        visible = torch.ones(n, n, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = visible.tril()
        visible = visible[None, None]
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]

        logits = torch.einsum("bhid,bhjd->bhij", q, k) * self.head_dim ** -0.5
        count = visible.sum(dim=-1, keepdim=True).clamp(min=1)
        logits = logits - count.to(logits.dtype).log()
        weights = torch.sigmoid(logits).masked_fill(~visible, 0.0)

        out = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))
