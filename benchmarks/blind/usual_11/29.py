import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiScaleRetention(nn.Module):
    """
    Retention (RetNet, Sun et al., 2023), parallel and recurrent form.

    There is no softmax: the weight of token m for token n is (q_n . k_m) * gamma ** (n - m) for m <= n.
    Each head has its own decay gamma and is normalised on its own before the gate. The rotation of the
    paper (xPos) is left out, so order enters through the decay only.

    forward(x) -> (batch, n, dim)
    forward_recurrent(x_t, state) -> (batch, dim), new state; state is None at the start
    """

    def __init__(self, dim=64, num_heads=4, eps=1e-6):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.eps = eps
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.g_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)
        gamma = 1.0 - 2.0 ** (-5.0 - torch.arange(num_heads, dtype=torch.float32))
        self.register_buffer("gamma", gamma)

    def _decay(self, n):
        idx = torch.arange(n, device=self.gamma.device)
        diff = (idx[:, None] - idx[None, :]).to(self.gamma.dtype)
        decay = self.gamma[:, None, None] ** diff.clamp(min=0)
        return decay * (diff >= 0)

    def _finish(self, x, y):
        # per-head normalisation, y: (..., heads, head_dim)
        y = F.layer_norm(y, (self.head_dim,), eps=self.eps)
        return self.out_proj(F.silu(self.g_proj(x)) * y.flatten(-2))

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.num_heads, self.head_dim)
        k = self.k_proj(x).view(b, n, self.num_heads, self.head_dim) * self.head_dim ** -0.5
        v = self.v_proj(x).view(b, n, self.num_heads, self.head_dim)
        weights = torch.einsum("bnhd,bmhd->bhnm", q, k) * self._decay(n)
        y = torch.einsum("bhnm,bmhd->bnhd", weights, v)
        return self._finish(x, y)

    def forward_recurrent(self, x_t, state=None):
        b = x_t.shape[0]
        q = self.q_proj(x_t).view(b, self.num_heads, self.head_dim)
        k = self.k_proj(x_t).view(b, self.num_heads, self.head_dim) * self.head_dim ** -0.5
        v = self.v_proj(x_t).view(b, self.num_heads, self.head_dim)
        update = torch.einsum("bhd,bhe->bhde", k, v)
        if state is not None:
            update = update + self.gamma.view(1, -1, 1, 1) * state
        y = torch.einsum("bhd,bhde->bhe", q, update)
        return self._finish(x_t, y), update
