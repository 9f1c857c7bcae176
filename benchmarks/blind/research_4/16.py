import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gain


class ChunkedCrossAttention(nn.Module):
    """Chunked cross-attention of RETRO.

    ``retrieved[:, u]`` holds the neighbours that were found with the text of chunk u. Only tokens that come after
    the whole of that chunk has been read may use them: its last token (which predicts the first token of the next
    chunk) and the next chunk except for its own last token. The first ``chunk_size - 1`` tokens therefore get
    nothing, and the sequence is shifted by that much before it is cut.

    Args:
        dim: width of the decoder.
        num_heads: number of heads.
        chunk_size: tokens per chunk; sequences must have at least that many.
        ctx_dim: width of the encoded neighbours, ``dim`` by default.
    """

    def __init__(self, dim=128, num_heads=4, chunk_size=8, ctx_dim=None):
        super().__init__()
        ctx_dim = ctx_dim or dim
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.chunk_size = chunk_size
        self.norm = RMSNorm(dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(ctx_dim, 2 * dim, bias=False)
        self.o = nn.Linear(dim, dim)

    def forward(self, x, retrieved):
        """x: [B, T, dim]; retrieved: [B, T // chunk_size, k, r, ctx_dim]. Returns [B, T, dim]."""
        B, T, C = x.shape
        m = self.chunk_size
        L, k, r = retrieved.shape[1:4]
        lead = m - 1

        h = self.norm(x)[:, lead:]
        used = h.size(1)
        h = F.pad(h, (0, 0, 0, L * m - used))
        h = h.reshape(B * L, m, C)
        ctx = retrieved.reshape(B * L, k * r, -1)

        q = self.q(h).view(B * L, m, self.num_heads, self.head_dim).transpose(1, 2)
        key, val = self.kv(ctx).view(B * L, k * r, 2, self.num_heads, self.head_dim).unbind(2)
        y = F.scaled_dot_product_attention(q, key.transpose(1, 2), val.transpose(1, 2))
        y = self.o(y.transpose(1, 2).reshape(B * L, m, C))

        y = y.view(B, L * m, C)[:, :used]
        y = F.pad(y, (0, 0, lead, 0))
        return x + y
