import torch
import torch.nn as nn


class LocalGlobalAttention(nn.Module):
    """Longformer pattern, dense implementation for short inputs and for tests.

    attention_mask [B, L]: -1 or 0 -> padding, 1 -> local token, 2 -> global token.
    Local tokens see ``window`` neighbours on either side plus all global tokens; global
    tokens see everything, through their own set of projections.
    """

    def __init__(self, dim=64, num_heads=4, window=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.query_global = nn.Linear(dim, dim)
        self.key_global = nn.Linear(dim, dim)
        self.value_global = nn.Linear(dim, dim)
        self.dense = nn.Linear(dim, dim)

    def _split(self, t):
        B, L, _ = t.shape
        return t.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)

    def _attend(self, q, k, v, visible):
        s = (q / self.head_dim ** 0.5) @ k.transpose(-1, -2)
        s = s.masked_fill(~visible, torch.finfo(s.dtype).min)
        p = s.softmax(dim=-1).masked_fill(~visible, 0.0)
        return p @ v

    def forward(self, x, attention_mask=None):
        B, L, C = x.shape
        if attention_mask is None:
            attention_mask = torch.ones(B, L, dtype=torch.long, device=x.device)
        real = attention_mask > 0
        is_global = attention_mask == 2

        i = torch.arange(L, device=x.device)
        near = (i[:, None] - i[None, :]).abs() <= self.window
        visible = near[None] | is_global[:, None, :]
        visible = (visible & real[:, None, :]).unsqueeze(1)

        local = self._attend(
            self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x)), visible
        )
        wide = self._attend(
            self._split(self.query_global(x)),
            self._split(self.key_global(x)),
            self._split(self.value_global(x)),
            real[:, None, None, :],
        )
        out = torch.where(is_global[:, None, :, None], wide, local)
        out = self.dense(out.transpose(1, 2).reshape(B, L, C))
        return out * real.unsqueeze(-1).to(out.dtype)
