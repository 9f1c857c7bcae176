import torch
import torch.nn as nn


def apply_rotary(x, pos, theta):
    d = x.shape[-1]
    freqs = 1.0 / theta ** (torch.arange(0, d, 2, device=x.device).float() / d)
    ang = torch.outer(pos.float(), freqs)[None, :, None, :]
    rot = torch.polar(torch.ones_like(ang), ang)
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(xc * rot).flatten(3).type_as(x)


class RollingCacheAttention(nn.Module):
    """
    Sliding-window attention with a rolling buffer, for inference.

    ``attn(prompt)`` with start_pos=0 starts new sequences, ``attn(token, start_pos=t)`` decodes position t. A token
    sees ``window`` positions, itself included. Keys are rotated before they are stored, and slot t % window holds
    position t: the order of the slots means nothing to softmax, so nothing has to be rolled back into order.
    """

    def __init__(self, dim=64, n_heads=4, n_kv_heads=2, window=8, max_batch=8, theta=10000.0):
        super().__init__()
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.window, self.max_batch, self.theta = window, max_batch, theta
        self.wq = nn.Linear(dim, n_heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, n_kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(n_heads * self.head_dim, dim, bias=False)
        shape = (max_batch, window, n_kv_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def forward(self, x: torch.Tensor, start_pos: int = 0) -> torch.Tensor:
        B, S, _ = x.shape
        if B > self.max_batch:
            raise ValueError(f"batch {B} exceeds max_batch {self.max_batch}")
        if start_pos > 0 and S != 1:
            raise ValueError("after the prompt tokens come one by one")
        pos = torch.arange(start_pos, start_pos + S, device=x.device)
        q = apply_rotary(self.wq(x).view(B, S, self.n_heads, self.head_dim), pos, self.theta)
        k = apply_rotary(self.wk(x).view(B, S, self.n_kv_heads, self.head_dim), pos, self.theta)
        v = self.wv(x).view(B, S, self.n_kv_heads, self.head_dim)

        slots = pos[-self.window:] % self.window
        with torch.no_grad():
            self.cache_k[:B, slots] = k[:, -self.window:].to(self.cache_k.dtype)
            self.cache_v[:B, slots] = v[:, -self.window:].to(self.cache_v.dtype)

        if start_pos > 0:
            filled = min(start_pos + 1, self.window)
            # clones, since the next call writes into the buffers
            k, v = self.cache_k[:B, :filled].clone().type_as(q), self.cache_v[:B, :filled].clone().type_as(q)
            blocked = torch.zeros(1, filled, dtype=torch.bool, device=x.device)
        else:
            age = pos[:, None] - pos[None, :]
            blocked = (age < 0) | (age >= self.window)

        groups = self.n_heads // self.n_kv_heads
        q = q.view(B, S, self.n_kv_heads, groups, self.head_dim)
        s = torch.einsum("bsngd,btnd->bngst", q, k) * self.head_dim ** -0.5
        p = s.masked_fill(blocked, float("-inf")).softmax(-1)
        return self.wo(torch.einsum("bngst,btnd->bsngd", p, v).reshape(B, S, -1))
