import torch
import torch.nn as nn


class MultiScaleRetention(nn.Module):
    """Retention (RetNet, Sun et al. 2023) in its parallel and recurrent forms.

    No softmax: each past token is weighted by q.k times gamma^(i-j), gamma fixed per head; a
    per-head group norm takes the place of the normalisation. Both forms give equal outputs.
    (The xpos rotation of the paper is left out.)
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.g_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        self.group_norm = nn.LayerNorm(self.head_dim, elementwise_affine=False)
        gamma = 1.0 - 2.0 ** (-5.0 - torch.arange(num_heads, dtype=torch.float32))
        self.register_buffer("gamma", gamma, persistent=False)

    def _qkv(self, x):
        b, n, _ = x.shape
        q, k, v = (
            f(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        return q, k * self.head_dim ** -0.5, v

    def _finish(self, y, x):
        y = self.group_norm(y).transpose(1, 2).flatten(2)
        return self.out_proj(torch.nn.functional.silu(self.g_proj(x)) * y)

    def forward(self, x):
        q, k, v = self._qkv(x)
        idx = torch.arange(x.size(1), device=x.device)
        diff = (idx[:, None] - idx[None, :]).float()
        decay = self.gamma[:, None, None] ** diff.clamp(min=0)
        decay = decay * (diff >= 0)
        y = ((q @ k.transpose(-1, -2)) * decay.to(x.dtype)) @ v
        return self._finish(y, x)

    def step(self, x, state=None):
        """x: (B, 1, dim); state: (B, H, d, d) or None. Returns output and new state."""
        q, k, v = self._qkv(x)
        update = k.transpose(-1, -2) @ v
        if state is None:
            state = update
        else:
            state = self.gamma.view(1, -1, 1, 1).to(x.dtype) * state + update
        return self._finish(q @ state, x), state
