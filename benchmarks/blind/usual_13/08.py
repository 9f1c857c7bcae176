import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal attention where every head owns one learned sink logit.

    The sink takes part in the softmax normalisation but carries no value, so a head
    can decide to attend to nothing. It is dropped after the softmax.
    """

    def __init__(self, dim=64, n_heads=4, n_kv_heads=2, window=None):
        super().__init__()
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.head_dim = dim // n_heads
        self.window = window
        self.qkv = nn.Linear(dim, (n_heads + 2 * n_kv_heads) * self.head_dim)
        self.out = nn.Linear(n_heads * self.head_dim, dim)
        self.sinks = nn.Parameter(torch.zeros(n_heads))

    def forward(self, x):
        b, t, _ = x.shape
        g = self.n_heads // self.n_kv_heads
        q, k, v = self.qkv(x).split(
            [self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim, self.n_kv_heads * self.head_dim],
            dim=-1,
        )
        q = q.view(b, t, self.n_kv_heads, g, self.head_dim)
        k = k.view(b, t, self.n_kv_heads, self.head_dim)
        v = v.view(b, t, self.n_kv_heads, self.head_dim)

        logits = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.head_dim ** -0.5
        i = torch.arange(t, device=x.device)
        hidden = i[None, :] > i[:, None]
        if self.window is not None:
            # a query sees itself and window - 1 tokens before it
            hidden = hidden | (i[:, None] - i[None, :] >= self.window)
        logits = logits.masked_fill(hidden, float("-inf"))

        sink = self.sinks.view(1, self.n_kv_heads, g, 1, 1).to(logits.dtype).expand(b, -1, -1, t, 1)
        probs = torch.cat([logits, sink], dim=-1).softmax(dim=-1)[..., :-1]

        y = torch.einsum("bhgqk,bkhd->bqhgd", probs, v)
        return self.out(y.reshape(b, t, -1))
