from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_every_two(x):
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


class ParallelBlock(nn.Module):
    """GPT-J style block: x + Attn(LN(x)) + MLP(LN(x)), with one LayerNorm for both branches.

    Rotary embedding on the first ``rotary_dim`` features of each head, grouped-query attention, and a KV cache that
    holds rotated keys. ``layer_past`` is what the previous call returned.
    """

    def __init__(self, n_embd: int = 64, n_head: int = 4, n_kv_head: int = 1, rotary_dim: int = 8,
                 n_inner: Optional[int] = None):
        super().__init__()
        self.n_head, self.n_kv_head = n_head, n_kv_head
        self.head_dim = n_embd // n_head
        self.rotary_dim = rotary_dim
        self.ln_1 = nn.LayerNorm(n_embd)
        self.q_proj = nn.Linear(n_embd, n_head * self.head_dim, bias=False)
        self.kv_proj = nn.Linear(n_embd, 2 * n_kv_head * self.head_dim, bias=False)
        self.out_proj = nn.Linear(n_embd, n_embd, bias=False)
        n_inner = n_inner or 4 * n_embd
        self.fc_in = nn.Linear(n_embd, n_inner)
        self.fc_out = nn.Linear(n_inner, n_embd)

    def _rotary(self, x, offset):
        rot, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim:]
        inv_freq = 1.0 / (10000 ** (torch.arange(0, self.rotary_dim, 2, device=x.device).float() / self.rotary_dim))
        pos = torch.arange(offset, offset + x.size(2), device=x.device).float()
        angle = torch.outer(pos, inv_freq).repeat_interleave(2, dim=-1)
        rot = rot * angle.cos().to(x.dtype) + rotate_every_two(rot) * angle.sin().to(x.dtype)
        return torch.cat((rot, rest), dim=-1)

    def forward(self, x: torch.Tensor, layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        B, T, C = x.shape
        h = self.ln_1(x)
        past = 0 if layer_past is None else layer_past[0].size(2)

        q = self.q_proj(h).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        k, v = self.kv_proj(h).view(B, T, 2, self.n_kv_head, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self._rotary(q, past), self._rotary(k, past)
        if layer_past is not None:
            k = torch.cat((layer_past[0], k), dim=2)
            v = torch.cat((layer_past[1], v), dim=2)
        present = (k, v)

        groups = self.n_head // self.n_kv_head
        q = q.reshape(B, self.n_kv_head, groups * T, self.head_dim)
        w = (q @ k.transpose(-1, -2)) / self.head_dim ** 0.5
        w = w.view(B, self.n_kv_head, groups, T, past + T)
        allowed = torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(diagonal=past)
        w = w.masked_fill(~allowed, torch.finfo(w.dtype).min)
        w = torch.softmax(w.float(), dim=-1).to(v.dtype)
        a = (w.view(B, self.n_kv_head, groups * T, past + T) @ v).view(B, self.n_head, T, self.head_dim)
        a = self.out_proj(a.transpose(1, 2).reshape(B, T, C))

        m = self.fc_out(F.gelu(self.fc_in(h), approximate="tanh"))
        return x + a + m, present
