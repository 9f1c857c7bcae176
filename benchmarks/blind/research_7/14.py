import torch
from torch import nn


class ChunkedLocalAttention(nn.Module):
    """Local attention of a streaming audio encoder.

    Each frame looks at ``left_context`` earlier frames and at itself. Logits are kept inside
    (-logit_cap, logit_cap) with a tanh, which stabilises training in bfloat16.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, left_context: int = 12, logit_cap: float = 5.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.left_context = left_context
        self.logit_cap = logit_cap
        self.norm = nn.LayerNorm(dim)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.post = nn.Linear(dim, dim, bias=False)
        self.per_dim_scale = nn.Parameter(torch.zeros(self.head_dim))

    def _heads(self, t):
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x):
        h = self.norm(x)
        scale = nn.functional.softplus(self.per_dim_scale) * (self.head_dim ** -0.5 / 0.6931471805599453)
        q = self._heads(self.q_proj(h)) * scale
        k = self._heads(self.k_proj(h))
        v = self._heads(self.v_proj(h))

        n = x.size(1)
        i = torch.arange(n, device=x.device)
        lag = i[:, None] - i[None, :]
        visible = (lag >= 0) & (lag <= self.left_context)

        logits = q @ k.transpose(-1, -2)
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        logits = self.logit_cap * torch.tanh(logits / self.logit_cap)
        probs = logits.float().softmax(dim=-1).to(v.dtype)

        ctx = (probs @ v).transpose(1, 2).flatten(2)
        return x + self.post(ctx)
