from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedSelfAttention(nn.Module):
    """Causal grouped-query attention on packed training sequences.

    Several documents share one row of the batch. ``document_ids`` tells them apart; tokens never look
    into another document and rotary positions restart at each document. Id -1 marks the unused rest
    of a row, whose outputs are zero.

    Args:
        dim: model width.
        n_heads, n_kv_heads: query heads and key/value heads.
        qk_norm: RMS-normalise queries and keys per head before the rotation.
    """

    def __init__(
        self,
        dim: int = 256,
        n_heads: int = 8,
        n_kv_heads: int = 2,
        dropout: float = 0.0,
        qk_norm: bool = True,
        rope_theta: float = 500000.0,
    ):
        super().__init__()
        assert dim % n_heads == 0 and n_heads % n_kv_heads == 0
        self.n_heads, self.n_kv_heads = n_heads, n_kv_heads
        self.head_dim = dim // n_heads
        self.dropout = dropout
        self.q_size = n_heads * self.head_dim
        self.kv_size = n_kv_heads * self.head_dim
        self.wqkv = nn.Linear(dim, self.q_size + 2 * self.kv_size, bias=False)
        self.wo = nn.Linear(self.q_size, dim, bias=False)
        if qk_norm:
            self.q_scale = nn.Parameter(torch.ones(self.head_dim))
            self.k_scale = nn.Parameter(torch.ones(self.head_dim))
        else:
            self.register_parameter("q_scale", None)
            self.register_parameter("k_scale", None)
        inv_freq = rope_theta ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    @staticmethod
    def _norm(x: torch.Tensor, scale: Optional[torch.Tensor]) -> torch.Tensor:
        if scale is None:
            return x
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        return y.type_as(x) * scale

    def _rope(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        """x: (B, heads, T, head_dim), pos: (B, T)."""
        angle = pos[:, None, :, None].float() * self.inv_freq.float()
        cos, sin = angle.cos(), angle.sin()
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).type_as(x)

    @staticmethod
    def document_positions(document_ids: torch.Tensor) -> torch.Tensor:
        """[[7, 7, 7, 3, 3]] -> [[0, 1, 2, 0, 1]]"""
        index = torch.arange(document_ids.size(1), device=document_ids.device).expand_as(document_ids)
        new = torch.ones_like(document_ids, dtype=torch.bool)
        new[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
        start = torch.where(new, index, torch.zeros_like(index)).cummax(dim=1).values
        return index - start

    def forward(self, x: torch.Tensor, document_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: (B, T, dim); document_ids: (B, T), the tokens of a document are consecutive."""
        B, T, _ = x.shape
        if document_ids is None:
            document_ids = torch.zeros(B, T, dtype=torch.long, device=x.device)

        q, k, v = self.wqkv(x).split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = q.view(B, T, self.n_heads, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.n_kv_heads, self.head_dim).transpose(1, 2)
        pos = self.document_positions(document_ids)
        q = self._rope(self._norm(q, self.q_scale), pos)
        k = self._rope(self._norm(k, self.k_scale), pos)
        k = k.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)
        v = v.repeat_interleave(self.n_heads // self.n_kv_heads, dim=1)

        # the unused tokens count as one more document among themselves, hence no row is empty
        same = document_ids[:, :, None] == document_ids[:, None, :]
        mask = same.tril().unsqueeze(1)
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        out = self.wo(out.transpose(1, 2).reshape(B, T, -1))
        return out.masked_fill((document_ids < 0).unsqueeze(-1), 0.0)
