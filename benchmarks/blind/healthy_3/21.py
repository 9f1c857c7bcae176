from typing import Optional

import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        # the weight is stored as an offset from one
        return (y * (1.0 + self.weight.float())).type_as(x)


class GemmaAttentionLayer(nn.Module):
    """Gemma-2 attention sub-layer: sandwich norms, soft-capped logits, grouped queries, RoPE.

    Args:
        query_pre_attn_scalar: the scores are divided by its square root. It is a constant of the
            model and need not be ``head_dim``.
        softcap: logits are squashed to (-softcap, softcap); ``None`` turns it off.
        window: ``None`` for global layers, otherwise the number of visible tokens.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_heads: int = 4,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        query_pre_attn_scalar: float = 64.0,
        softcap: Optional[float] = 50.0,
        window: Optional[int] = None,
        rope_theta: float = 10_000.0,
    ):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.scaling = query_pre_attn_scalar ** -0.5
        self.softcap = softcap
        self.window = window
        self.input_norm = RMSNorm(hidden_size)
        self.post_norm = RMSNorm(hidden_size)
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size, bias=False)
        inv_freq = 1.0 / rope_theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def rotate(self, x: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """x: (B, T, heads, head_dim), position_ids: (B, T). The two halves form the pairs."""
        angle = position_ids[..., None, None].float() * self.inv_freq.float()
        cos, sin = angle.cos(), angle.sin()
        x1, x2 = x.float().chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).type_as(x)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_ids: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """
        hidden_states: (B, T, hidden_size)
        attention_mask: (B, T), nonzero for tokens
        position_ids: (B, T), by default counted from the first token of each row
        """
        B, T, _ = hidden_states.shape
        device = hidden_states.device
        valid = torch.ones(B, T, dtype=torch.bool, device=device)
        if attention_mask is not None:
            valid = attention_mask.bool()
        if position_ids is None:
            position_ids = (valid.long().cumsum(-1) - 1).clamp(min=0)

        x = self.input_norm(hidden_states)
        q = self.rotate(self.q_proj(x).view(B, T, self.num_heads, self.head_dim), position_ids)
        k = self.rotate(self.k_proj(x).view(B, T, self.num_kv_heads, self.head_dim), position_ids)
        v = self.v_proj(x).view(B, T, self.num_kv_heads, self.head_dim)
        q = q.view(B, T, self.num_kv_heads, -1, self.head_dim)  # query heads of a group stand together

        logits = torch.einsum("btgrd,bsgd->bgrts", q * self.scaling, k)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)

        index = torch.arange(T, device=device)
        distance = index[:, None] - index[None, :]
        visible = distance >= 0
        if self.window is not None:
            visible = visible & (distance < self.window)
        visible = visible & valid[:, None, :] | (distance == 0)
        logits = logits.masked_fill(~visible[:, None, None], torch.finfo(logits.dtype).min)

        probs = logits.float().softmax(dim=-1).type_as(v)
        out = torch.einsum("bgrts,bsgd->btgrd", probs, v).reshape(B, T, -1)
        return hidden_states + self.post_norm(self.o_proj(out))
