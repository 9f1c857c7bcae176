import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_every_two(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


class MultiScaleRetention(nn.Module):
    """Retention in its parallel form (Sun et al., 2023).

    No softmax: the products of queries and keys are weighted by gamma ** (n - m), with one gamma
    per head, then scaled by row sums for numerical stability (the factor is taken as a constant,
    the head-wise norm that follows makes the output invariant to it). Swish gate on the output.
    """

    def __init__(self, embed_dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.key_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.g_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

        angle = 1.0 / (10000 ** torch.linspace(0, 1, self.key_dim // 2))
        self.register_buffer("angle", angle.repeat_interleave(2), persistent=False)
        decay = torch.log(1 - 2 ** (-5 - torch.arange(num_heads, dtype=torch.float)))
        self.register_buffer("decay", decay, persistent=False)

    def _relative(self, n, device):
        index = torch.arange(n, device=device, dtype=torch.float)
        phase = index[:, None] * self.angle[None, :]
        gap = index[:, None] - index[None, :]
        gap = gap.masked_fill(gap < 0, float("inf"))
        mask = torch.exp(gap * self.decay[:, None, None])
        mask = mask / mask.sum(dim=-1, keepdim=True).sqrt()
        return phase.sin(), phase.cos(), mask

    def forward(self, x):
        b, n, d = x.shape
        sin, cos, mask = self._relative(n, x.device)

        q = self.q_proj(x).view(b, n, self.num_heads, self.key_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_heads, self.key_dim).transpose(1, 2)
        v = self.v_proj(x).view(b, n, self.num_heads, self.key_dim).transpose(1, 2)
        k = k * self.key_dim ** -0.5

        q = q * cos + rotate_every_two(q) * sin
        k = k * cos + rotate_every_two(k) * sin

        qk = (q @ k.transpose(-1, -2)) * mask
        qk = qk / qk.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1)
        out = (qk @ v).transpose(1, 2)

        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6)
        out = out.reshape(b, n, d)
        return self.out_proj(F.silu(self.g_proj(x)) * out)
