import torch
import torch.nn as nn
import torch.nn.functional as F


class StrictlyCausalAttention(nn.Module):
    """Attention over the strict past: position i sees positions 0 ... i - 1 and never itself.

    For autoregressive density models where the input at i is the value that is being predicted. A learned
    null key/value is always visible, so the first position has something to attend to. There is no
    output projection; the caller mixes the heads.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.query_emb = nn.Parameter(torch.randn(dim) * 0.02)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, self.head_dim) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        # the query may not contain x[:, i] either: shift by one, with a learned start vector
        start = self.query_emb.expand(b, 1, c)
        x_prev = torch.cat((start, x[:, :-1]), dim=1)
        q = self.to_q(x_prev).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.to_k(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.to_v(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        null_k, null_v = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
        k = torch.cat((null_k, k), dim=2)
        v = torch.cat((null_v, v), dim=2)

        mask = torch.ones(n, n + 1, dtype=torch.bool, device=x.device).tril(0)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2).reshape(b, n, c)
