from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class GPT2SdpaAttention(nn.Module):
    """GPT-2 attention with a legacy tuple cache.

    Supports prefill in several chunks (long prompts are fed piece by piece) as well as
    token-by-token decoding.

    Returns ``(attn_output, present)`` where ``present`` is ``(key, value)``.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, attn_pdrop: float = 0.0,
                 resid_pdrop: float = 0.0):
        super().__init__()
        self.embed_dim = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.attn_pdrop = attn_pdrop
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def _split_heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.view(t.size(0), t.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = True,
    ):
        bsz, q_len, _ = hidden_states.size()
        query, key, value = self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        query, key, value = self._split_heads(query), self._split_heads(key), self._split_heads(value)

        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=-2)
            value = torch.cat((layer_past[1], value), dim=-2)
        present = (key, value) if use_cache else None

        attn_output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.attn_pdrop if self.training else 0.0,
            is_causal=q_len > 1,
        )
        attn_output = attn_output.transpose(1, 2).contiguous().view(bsz, q_len, self.embed_dim)
        attn_output = self.resid_dropout(self.c_proj(attn_output))
        return attn_output, present
