import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class LongDocumentAttention(nn.Module):
    """Sliding-window attention with a few global tokens, for long documents.

    Every token attends to ``window`` neighbours on either side and to all the global tokens;
    a global token attends to the whole document through its own set of projections.

    Args:
        attention_mask: bool ``[B, T]``, True for real tokens.
        global_mask: bool ``[B, T]``, True for global tokens.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.query_global, self.key_global, self.value_global = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def _heads(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def _windows(self, x):
        w = self.window
        return F.pad(x, (0, 0, w, w)).unfold(2, 2 * w + 1, 1)

    def forward(
        self,
        x: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        global_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        b, t, _ = x.shape
        if attention_mask is None:
            attention_mask = torch.ones(b, t, dtype=torch.bool, device=x.device)
        if global_mask is None:
            global_mask = torch.zeros(b, t, dtype=torch.bool, device=x.device)
        attention_mask = attention_mask.bool()
        global_mask = global_mask.bool() & attention_mask
        low = torch.finfo(x.dtype).min
        w = self.window

        q = self._heads(self.query(x)) / math.sqrt(self.head_dim)
        k = self._heads(self.key(x))
        v = self._heads(self.value(x))

        local = torch.einsum("bhtd,bhtdw->bhtw", q, self._windows(k))
        inside = F.pad(attention_mask.int(), (w, w)).unfold(1, 2 * w + 1, 1).bool()
        local = local.masked_fill(~inside[:, None], low)

        n_global = int(global_mask.sum(dim=1).max())
        picked, index = global_mask.float().topk(n_global, dim=1)
        gather = index[:, None, :, None].expand(-1, self.num_heads, -1, self.head_dim)
        k_sel, v_sel = k.gather(2, gather), v.gather(2, gather)
        to_global = q @ k_sel.transpose(-1, -2)
        to_global = to_global.masked_fill(picked[:, None, None, :] == 0, low)

        probs = torch.cat([to_global, local], dim=-1).softmax(dim=-1)
        p_global, p_local = probs.split([n_global, 2 * w + 1], dim=-1)
        out = p_global @ v_sel + torch.einsum("bhtw,bhtdw->bhtd", p_local, self._windows(v))

        if n_global > 0:
            qg = self._heads(self.query_global(x))
            kg = self._heads(self.key_global(x))
            vg = self._heads(self.value_global(x))
            full = F.scaled_dot_product_attention(qg, kg, vg, attn_mask=attention_mask[:, None, None, :])
            out = torch.where(global_mask[:, None, :, None], full, out)

        out = out.transpose(1, 2).reshape(b, t, -1)
        return self.out(out)
