import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiScaleRetention(nn.Module):
    """Retention (RetNet), parallel form.

    Causal, no softmax: the product q k^T is weighted with gamma_h ** (i - j) for j <= i. Rows are
    not normalised; a parameter-free norm per head follows, then a swish gate.
    """

    def __init__(self, embed_dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.key_dim = embed_dim // num_heads
        self.scaling = self.key_dim ** -0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.g_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        decay = torch.log(1 - 2 ** (-5 - torch.arange(num_heads, dtype=torch.float)))
        self.register_buffer("decay", decay)

    def decay_mask(self, n):
        idx = torch.arange(n, device=self.decay.device)
        rel = (idx[:, None] - idx[None, :]).float()
        mask = torch.exp(rel.clamp(min=0)[None] * self.decay[:, None, None])
        return mask * (rel >= 0)

    def forward(self, x):
        b, n, d = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, self.key_dim).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.num_heads, self.key_dim).transpose(1, 2) * self.scaling
        v = self.v_proj(x).view(b, n, self.num_heads, self.key_dim).transpose(1, 2)

        qk = q @ k.transpose(-1, -2)
        qk = qk * self.decay_mask(n).to(qk.dtype)
        out = (qk @ v).transpose(1, 2)
        out = F.layer_norm(out, (self.key_dim,))
        out = out.reshape(b, n, d)
        return self.out_proj(F.silu(self.g_proj(x)) * out)
