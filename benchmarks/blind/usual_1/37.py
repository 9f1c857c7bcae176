from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class RotaryEmbedding(nn.Module):
    """Rotary tables, kept between calls since all the layers and steps share them."""

    def __init__(self, dim: int, base: float = 10000.0):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached = None
        self._sin_cached = None

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor):
        seq_len = position_ids.shape[-1]
        if (
            seq_len != self._seq_len_cached
            or self._cos_cached.device != x.device
            or self._cos_cached.dtype != x.dtype
            or self._cos_cached.shape[0] != position_ids.shape[0]
        ):
            freqs = position_ids[..., None].float() * self.inv_freq
            emb = torch.cat((freqs, freqs), dim=-1)
            self._seq_len_cached = seq_len
            self._cos_cached = emb.cos().to(x.dtype)
            self._sin_cached = emb.sin().to(x.dtype)
        return self._cos_cached, self._sin_cached


class RotaryCausalAttention(nn.Module):
    """Causal self-attention with rotary positions.

    ``position_ids`` (B, T) may be anything: counted from the first real token under left padding,
    restarted for every document of a packed row, scaled for interpolation. Default: 0, 1, 2, ...
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, rope_base: float = 10000.0, dropout: float = 0.0):
        super().__init__()
        assert hidden_size % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.dropout = dropout
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = RotaryEmbedding(self.head_dim, base=rope_base)

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_ids: Optional[torch.Tensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """attention_mask: (B, T), 1 for tokens and 0 for padding."""
        B, T, C = hidden_states.shape
        if position_ids is None:
            position_ids = torch.arange(T, device=hidden_states.device).unsqueeze(0)

        q, k, v = self.qkv_proj(hidden_states).chunk(3, dim=-1)
        q, k, v = (t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2) for t in (q, k, v))

        cos, sin = self.rotary_emb(q, position_ids)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin

        allowed = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()[None, None]
        if attention_mask is not None:
            eye = torch.eye(T, dtype=torch.bool, device=q.device)
            allowed = allowed & (attention_mask[:, None, None, :].bool() | eye)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=allowed, dropout_p=self.dropout if self.training else 0.0
        )
        return self.o_proj(out.transpose(1, 2).reshape(B, T, C))
