import torch
from torch import nn


class StrictlyAutoregressiveAttention(nn.Module):
    """Attention for autoregressive density models: output i depends on x_0 ... x_{i-1} and not on x_i.

    The diagonal is masked too. The queries are made of positions only and there is no residual connection,
    since either would carry x_i to output i. Position 0 has no predecessor, so a learned (null) key and
    value is put in front of the sequence, which everybody may see.
    """

    def __init__(self, dim: int = 32, num_heads: int = 4, max_len: int = 256):
        super().__init__()
        self.num_heads = num_heads
        self.scale = (dim // num_heads) ** -0.5
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, dim // num_heads) * 0.02)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        h = self.num_heads
        pos = self.pos[:n]
        q = self.q(pos).view(n, h, d // h).transpose(0, 1)
        k, v = self.kv(x + pos).view(b, n, 2, h, d // h).permute(2, 0, 3, 1, 4)
        null_k, null_v = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
        k = torch.cat([null_k, k], dim=2)
        v = torch.cat([null_v, v], dim=2)

        logits = torch.einsum("hid,bhjd->bhij", q, k) * self.scale
        # column 0 is the null key, column j + 1 is token j
        visible = torch.ones(n, n + 1, dtype=torch.bool, device=x.device).tril(0)
        attn = logits.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        return self.out(torch.einsum("bhij,bhjd->bihd", attn, v).reshape(b, n, d))
