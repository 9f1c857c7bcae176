import math
from typing import Optional, Tuple

import torch
from torch import nn
import torch.nn.functional as F


def get_slopes(n: int) -> torch.Tensor:
    closest = 2 ** math.floor(math.log2(n))
    base = 2.0 ** (-(2.0 ** -(math.log2(closest) - 3)))
    slopes = [base ** i for i in range(1, closest + 1)]
    if closest != n:
        extra_base = 2.0 ** (-(2.0 ** -(math.log2(2 * closest) - 3)))
        remaining = n - closest
        slopes += [extra_base ** i for i in range(1, 2 * remaining + 1, 2)]
    return torch.tensor(slopes, dtype=torch.float32)


def build_alibi_tensor(attention_mask: torch.Tensor, slopes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """
    The bias only depends on the key: ``slope * (j - i)`` and ``slope * j`` differ by a constant per row and
    softmax ignores it. Positions count real tokens, so left padding does not move them.

    Returns a tensor of shape (batch, num_heads, 1, key_length).
    """
    positions = (attention_mask.long().cumsum(dim=-1) - 1) * attention_mask.long()
    return (slopes[None, :, None, None] * positions[:, None, None, :]).to(dtype)


class BloomAttention(nn.Module):
    def __init__(self, hidden_size: int = 96, n_head: int = 6, hidden_dropout: float = 0.0, attention_dropout: float = 0.0):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_heads = n_head
        self.head_dim = hidden_size // n_head
        if self.head_dim * n_head != hidden_size:
            raise ValueError(f"`hidden_size` must be divisible by n_head (got {hidden_size} and {n_head}).")
        self.inv_norm_factor = 1.0 / math.sqrt(self.head_dim)
        self.hidden_dropout = hidden_dropout
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.attention_dropout = nn.Dropout(attention_dropout)
        self.register_buffer("slopes", get_slopes(n_head), persistent=False)

    def _split_heads(self, fused_qkv: torch.Tensor):
        # q, k and v are interleaved per head in the checkpoint
        bsz, length, _ = fused_qkv.shape
        fused_qkv = fused_qkv.view(bsz, length, self.num_heads, 3, self.head_dim)
        query = fused_qkv[..., 0, :].transpose(1, 2)
        key = fused_qkv[..., 1, :].transpose(1, 2)
        value = fused_qkv[..., 2, :].transpose(1, 2)
        return query, key, value

    def forward(
        self,
        hidden_states: torch.Tensor,
        residual: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
    ):
        """
        Args:
            hidden_states: (batch, q_len, hidden), already normalised by the caller.
            residual: what the dropped-out result is added to.
            attention_mask: (batch, past + q_len), 1 for tokens, 0 for padding.
            layer_past: cached (key, value), each (batch, heads, past, head_dim).
        """
        bsz, q_length, _ = hidden_states.shape
        query, key, value = self._split_heads(self.query_key_value(hidden_states))
        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=2)
            value = torch.cat((layer_past[1], value), dim=2)
        kv_length = key.shape[2]
        present = (key, value) if use_cache else None

        if attention_mask is None:
            attention_mask = torch.ones(bsz, kv_length, dtype=torch.long, device=hidden_states.device)
        alibi = build_alibi_tensor(attention_mask, self.slopes, torch.float32)

        scores = torch.matmul(query, key.transpose(-1, -2)).float() * self.inv_norm_factor + alibi
        q_pos = torch.arange(kv_length - q_length, kv_length, device=scores.device)[:, None]
        k_pos = torch.arange(kv_length, device=scores.device)[None, :]
        blocked = (k_pos > q_pos)[None] | (attention_mask == 0)[:, None, :]
        # a padded query keeps itself, its row would be empty otherwise
        blocked = blocked & (k_pos != q_pos)
        scores = scores.masked_fill(blocked[:, None], torch.finfo(scores.dtype).min)

        probs = self.attention_dropout(F.softmax(scores, dim=-1).to(value.dtype))
        context = torch.matmul(probs, value).transpose(1, 2).reshape(bsz, q_length, self.hidden_size)
        output = self.dense(context)
        output = residual + F.dropout(output, p=self.hidden_dropout, training=self.training)
        return output, present
