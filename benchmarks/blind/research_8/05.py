import math

import torch
import torch.nn as nn


class SigmoidSelfAttention(nn.Module):
    """Attention with an elementwise sigmoid in place of the softmax.

    Follows "Theory, Analysis, and Best Practices for Sigmoid Self-Attention": the logits get the bias
    -log(n), n being the number of keys that a query may see, so that the row sums are of order one at
    initialisation. Rows are not normalised.

    key_padding_mask: [B, T], True at padding.
    """

    def __init__(self, dim=64, num_heads=4, causal=False, qk_norm=True):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x, key_padding_mask=None):
        b, t, d = x.shape
        q, k, v = self.to_qkv(x).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)

        allowed = torch.ones(b, 1, t, t, dtype=torch.bool, device=x.device)
        if self.causal:
            allowed = allowed.tril()
        if key_padding_mask is not None:
            allowed = allowed & ~key_padding_mask[:, None, None, :]

        n = allowed.sum(-1, keepdim=True).clamp(min=1).to(q.dtype)
        logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim) - n.log()
        weights = torch.sigmoid(logits) * allowed
        y = weights @ v
        return self.to_out(y.transpose(1, 2).reshape(b, t, d))
