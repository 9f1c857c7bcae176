from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class SdpaAttention(nn.Module):
    """Multi-query causal attention with past key/values.

    Returns the output and, with ``use_cache``, the extended (key, value) pair.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.kv_proj = nn.Linear(hidden_size, 2 * self.head_dim, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(
        self,
        hidden_states: torch.Tensor,
        past_key_values: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        b, t, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.kv_proj(hidden_states).unsqueeze(1).chunk(2, dim=-1)

        if past_key_values is not None:
            k = torch.cat([past_key_values[0], k], dim=-2)
            v = torch.cat([past_key_values[1], v], dim=-2)
        new_cache = (k, v) if use_cache else None

        out = F.scaled_dot_product_attention(
            q,
            k.expand(-1, self.num_heads, -1, -1),
            v.expand(-1, self.num_heads, -1, -1),
            is_causal=True,
        )
        out = out.transpose(1, 2).reshape(b, t, -1)
        return self.o_proj(out), new_cache
