import torch
import torch.nn as nn


class SigmoidSelfAttention(nn.Module):
    """Element-wise sigmoid attention (Ramapuram et al., 2024).

    Weights are not normalised over the keys. A bias of -log(n), with n the number of keys
    that a query may see, keeps the output at the scale of a softmax at initialisation.

    key_padding_mask: [B, T] bool, True for padding (as in nn.MultiheadAttention).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, causal: bool = False, qk_norm: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, key_padding_mask=None):
        B, T, D = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)

        allowed = torch.ones(1, 1, T, T, dtype=torch.bool, device=x.device)
        if self.causal:
            allowed = allowed.tril()
        if key_padding_mask is not None:
            allowed = allowed & ~key_padding_mask[:, None, None, :]

        n = allowed.sum(dim=-1, keepdim=True).clamp(min=1)
        logits = q @ k.transpose(-2, -1) * self.head_dim ** -0.5 - n.to(q.dtype).log()
        weights = torch.sigmoid(logits).masked_fill(~allowed, 0.0)

        y = (weights @ v).transpose(1, 2).reshape(B, T, D)
        return self.out_proj(y)
