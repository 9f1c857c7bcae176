import torch
import torch.nn as nn
import torch.nn.functional as F


class StrictlyCausalAttention(nn.Module):
    """Attention to the strict past, for autoregressive density models.

    Step t reads keys and values of inputs 0 .. t-1 and never those of input t itself; its query comes
    from the separate `context` stream (position and conditioning, no input t). Step 0 has no
    past, so every step may also attend to a learned null entry.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_kv = nn.Linear(dim, 2 * dim)
        self.null_k = nn.Parameter(0.02 * torch.randn(1, num_heads, 1, self.head_dim))
        self.null_v = nn.Parameter(torch.zeros(1, num_heads, 1, self.head_dim))
        self.out = nn.Linear(dim, dim)

    def forward(self, context, x):
        """context, x: (B, T, dim)"""
        B, T, C = x.shape
        q = self.to_q(context).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.to_kv(x).view(B, T, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        k = torch.cat((self.null_k.expand(B, -1, -1, -1), k), dim=2)
        v = torch.cat((self.null_v.expand(B, -1, -1, -1), v), dim=2)

        # column 0 is the null entry, column j + 1 is input j
        allowed = torch.ones(T, T + 1, dtype=torch.bool, device=x.device).tril()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).reshape(B, T, C))
