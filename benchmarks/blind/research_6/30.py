import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


class SoftcappedAttention(nn.Module):
    """Gemma-2 style attention sub-layer: norm before and after, logits soft-capped.

    Even layers use a sliding window, odd layers see the whole prefix.
    """

    def __init__(
        self,
        dim=64,
        num_heads=4,
        layer_idx=0,
        sliding_window=16,
        attn_logit_softcapping=5.0,
        query_pre_attn_scalar=None,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scaling = (query_pre_attn_scalar or self.head_dim) ** -0.5
        self.softcap = attn_logit_softcapping
        self.window = sliding_window if layer_idx % 2 == 0 else None
        self.pre_norm = RMSNorm(dim)
        self.post_norm = RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def _mask(self, T, device):
        i = torch.arange(T, device=device)
        dist = i[:, None] - i[None, :]
        visible = dist >= 0
        if self.window is not None:
            visible &= dist < self.window
        return visible

    def forward(self, x, padding_mask=None):
        """padding_mask: bool [B, T], True for tokens, False for right padding."""
        B, T, C = x.shape
        q, k, v = self.qkv(self.pre_norm(x)).split(C, dim=-1)
        q, k, v = (t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))

        visible = self._mask(T, x.device)[None, None]
        if padding_mask is not None:
            visible = visible & padding_mask[:, None, None, :]

        logits = (q * self.scaling) @ k.transpose(-1, -2)
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        logits = self.softcap * torch.tanh(logits / self.softcap)

        probs = logits.float().softmax(dim=-1).to(v.dtype)
        y = (probs @ v).transpose(1, 2).reshape(B, T, C)
        return x + self.post_norm(self.o_proj(y))
