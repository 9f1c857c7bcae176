import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal GQA with a learned sink logit per head (gpt-oss).

    The sink takes part in the softmax as one more column that has no value; it is
    dropped afterwards, so a head may put less than a total weight of one on the tokens.

    Args:
        dim: model width
        num_heads: query heads
        num_kv_heads: key/value heads
        sliding_window: if > 0, a token sees itself and the sliding_window - 1 tokens before it
    """

    def __init__(self, dim=64, num_heads=8, num_kv_heads=2, sliding_window=0):
        super().__init__()
        self.hq, self.hkv = num_heads, num_kv_heads
        self.group = num_heads // num_kv_heads
        self.hd = dim // num_heads
        self.sliding_window = sliding_window
        self.sm_scale = self.hd ** -0.5
        self.q = nn.Linear(dim, num_heads * self.hd)
        self.kv = nn.Linear(dim, 2 * num_kv_heads * self.hd)
        self.out = nn.Linear(num_heads * self.hd, dim)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q(x).view(B, T, self.hkv, self.group, self.hd)
        k, v = self.kv(x).view(B, T, 2, self.hkv, self.hd).unbind(2)

        qk = torch.einsum("bqhgd,bkhd->bhgqk", q, k) * self.sm_scale
        i = torch.arange(T, device=x.device)
        blocked = i[None, :] > i[:, None]
        if self.sliding_window > 0:
            blocked = blocked | (i[:, None] - i[None, :] >= self.sliding_window)
        qk = qk.masked_fill(blocked, float("-inf"))

        s = self.sinks.view(1, self.hkv, self.group, 1, 1).expand(B, -1, -1, T, 1)
        w = torch.cat([qk, s.to(qk.dtype)], dim=-1).softmax(dim=-1)[..., :-1]

        y = torch.einsum("bhgqk,bkhd->bqhgd", w, v)
        return self.out(y.reshape(B, T, self.hq * self.hd))
