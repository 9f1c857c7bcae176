import torch
from torch import nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020), optionally causal.

    Two small matrices mix the heads, one on the logits and one on the probabilities.
    The masks come after the first mixing: -inf must not be multiplied. After the second
    mixing the rows of a head need not sum to one, and single weights may be negative.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim)
        self.pre = nn.Parameter(torch.eye(num_heads) + 0.1 * torch.randn(num_heads, num_heads))
        self.post = nn.Parameter(torch.eye(num_heads) + 0.1 * torch.randn(num_heads, num_heads))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.unbind(2)

        logits = torch.einsum("bihd,bjhd->bhij", q * self.head_dim ** -0.5, k)
        logits = torch.einsum("bhij,hg->bgij", logits, self.pre)
        if self.causal:
            future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
            logits = logits.masked_fill(future, float("-inf"))

        probs = logits.softmax(dim=-1)
        probs = torch.einsum("bgij,gh->bhij", probs, self.post)

        y = torch.einsum("bhij,bjhd->bihd", probs, v)
        return self.out(y.reshape(b, n, c))
