import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1 + self.weight.float())).type_as(x)


class SoftCappedAttention(nn.Module):
    """Causal attention block with logit soft-capping, sandwich norms as in Gemma 2.

    The cap keeps the logits in (-softcap, softcap). padding_mask: [B, T], True at padding.
    """

    def __init__(self, dim=64, num_heads=4, softcap=5.0, query_scale=None):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.softcap = softcap
        self.scale = query_scale if query_scale is not None else self.head_dim ** -0.5
        self.pre_norm = RMSNorm(dim)
        self.post_norm = RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x, padding_mask=None):
        b, t, d = x.shape
        h = self.pre_norm(x)
        q, k, v = self.qkv(h).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        blocked = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)[None, None]
        if padding_mask is not None:
            blocked = blocked | padding_mask[:, None, None, :]

        logits = torch.matmul(q * self.scale, k.transpose(2, 3))
        logits = logits.masked_fill(blocked, torch.finfo(logits.dtype).min)
        logits = torch.tanh(logits / self.softcap) * self.softcap
        probs = torch.softmax(logits.float(), dim=-1).type_as(v)
        y = torch.matmul(probs, v).transpose(1, 2).reshape(b, t, d)
        return x + self.post_norm(self.o(y))
