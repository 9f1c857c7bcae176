from typing import Optional

import torch
import torch.nn as nn


class SoftCappedAttention(nn.Module):
    """Causal grouped-query attention with logit soft-capping.

    Parameters
    ----------
    hidden_size, num_heads, num_kv_heads, head_dim
        the usual sizes
    query_pre_attn_scalar
        the logits are divided by the square root of this number (default: ``head_dim``)
    attn_logit_softcapping
        bound on the absolute value of the logits
    """

    def __init__(
        self,
        hidden_size: int = 64,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 16,
        query_pre_attn_scalar: Optional[float] = None,
        attn_logit_softcapping: float = 8.0,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.scaling = (query_pre_attn_scalar or head_dim) ** -0.5
        self.softcap = attn_logit_softcapping
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """attention_mask: [B, T], 1 for tokens and 0 for padding."""
        B, T, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(B, T, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = k.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)
        v = v.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1)

        visible = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()[None, None]
        if attention_mask is not None:
            visible = visible & attention_mask[:, None, None, :].bool()

        logits = torch.matmul(q, k.transpose(2, 3)) * self.scaling
        logits = logits.masked_fill(~visible, torch.finfo(logits.dtype).min)
        logits = self.softcap * torch.tanh(logits / self.softcap)
        probs = torch.softmax(logits, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(probs, v).transpose(1, 2).reshape(B, T, -1)
        return self.o_proj(out)
