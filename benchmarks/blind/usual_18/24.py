import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiScaleRetention(nn.Module):
    """Parallel form of the multi-scale retention of RetNet (without the xPos rotation).

    There is no softmax.  Position n weighs position m <= n by q_n . k_m * gamma^(n-m), where gamma
    differs between heads.  The weights may be negative and do not sum to one; the scale of the result
    is fixed by a normalisation per head and per position, followed by a swish gate.
    """

    def __init__(self, embed_dim=64, num_heads=4, value_factor=2):
        super().__init__()
        self.num_heads = num_heads
        self.key_dim = embed_dim // num_heads
        self.value_dim = embed_dim * value_factor // num_heads
        self.scaling = self.key_dim ** -0.5

        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.v_proj = nn.Linear(embed_dim, embed_dim * value_factor, bias=False)
        self.g_proj = nn.Linear(embed_dim, embed_dim * value_factor, bias=False)
        self.out_proj = nn.Linear(embed_dim * value_factor, embed_dim, bias=False)

        log_gamma = torch.log(1 - 2 ** (-5 - torch.arange(num_heads, dtype=torch.float)))
        self.register_buffer("log_gamma", log_gamma)

    def decay(self, length):
        pos = torch.arange(length, device=self.log_gamma.device)
        dist = pos[:, None] - pos[None, :]
        weight = torch.exp(self.log_gamma[:, None, None] * dist.clamp(min=0))
        return weight.masked_fill(dist < 0, 0.0)

    def forward(self, x):
        B, T, _ = x.shape
        q = self.q_proj(x).view(B, T, self.num_heads, self.key_dim).transpose(1, 2)
        k = self.k_proj(x).view(B, T, self.num_heads, self.key_dim).transpose(1, 2) * self.scaling
        v = self.v_proj(x).view(B, T, self.num_heads, self.value_dim).transpose(1, 2)

        qk = q @ k.transpose(-1, -2) * self.decay(T).to(q.dtype)
        y = (qk @ v).transpose(1, 2)
        y = F.layer_norm(y, (self.value_dim,)).reshape(B, T, -1)
        return self.out_proj(F.silu(self.g_proj(x)) * y)
