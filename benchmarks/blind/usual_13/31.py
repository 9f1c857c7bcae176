import torch
import torch.nn as nn


class StrictLocalAttention(nn.Module):
    """Local attention over strictly earlier tokens.

    Query ``i`` attends to ``i - window, ..., i - 1``. It never sees itself: the layer predicts
    a correction for token ``i`` out of its past only. Token 0 has no past and receives zeros.
    """

    def __init__(self, dim: int = 64, n_heads: int = 4, window: int = 8):
        super().__init__()
        self.n_heads = n_heads
        self.window = window
        self.q = nn.Linear(dim, dim, bias=False)
        self.k = nn.Linear(dim, dim, bias=False)
        self.v = nn.Linear(dim, dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        dh = d // self.n_heads
        q = self.q(x).view(b, n, self.n_heads, dh).transpose(1, 2)
        k = self.k(x).view(b, n, self.n_heads, dh).transpose(1, 2)
        v = self.v(x).view(b, n, self.n_heads, dh).transpose(1, 2)

        dist = torch.arange(n, device=x.device)[:, None] - torch.arange(n, device=x.device)[None, :]
        seen = (dist > 0) & (dist <= self.window)

        logits = q @ k.transpose(-1, -2) * dh ** -0.5
        logits = logits.masked_fill(~seen, torch.finfo(logits.dtype).min)
        probs = logits.softmax(dim=-1)
        # the first row has nothing to see and comes out uniform
        probs = probs * seen.any(dim=-1, keepdim=True).to(probs.dtype)
        out = (probs @ v).transpose(1, 2).reshape(b, n, d)
        return self.o(out)
