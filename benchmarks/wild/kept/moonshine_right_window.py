"""The right side of the sliding window uses a strict inequality, so one look-ahead frame is missing.

huggingface/transformers #47162 (2026)
https://github.com/huggingface/transformers/pull/47162
"""
from typing import Callable

import torch
from torch import nn


class _MoonshineStreamingEncoderAttentionBase(nn.Module):
    """
    Encoder self attention with a limited context.

    `sliding_window` is `(w_left, w_right)`: a frame attends to itself, to fewer than `w_left` frames back
    (`w_left - 1` past frames) and to `w_right` future frames. A look-ahead of `w_right = 4` frames at 50 Hz is an
    algorithmic latency of 4 x 20 ms = 80 ms.
    """

    def __init__(self, hidden_size: int, num_heads: int, sliding_window: tuple[int, int]):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.sliding_window = sliding_window
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """attention_mask: `(batch, frames)`, 1 for frames to attend to, 0 for padding."""
        bsz, seq_len, _ = hidden_states.shape
        q, k, v = (f(hidden_states).view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)
                   for f in (self.q_proj, self.k_proj, self.v_proj))
        inner_mask = self.sliding_window_mask_function(self.sliding_window)
        idx = torch.arange(seq_len, device=hidden_states.device)
        mask = inner_mask(idx[:, None], idx[None, :])[None, None]
        mask = mask & (attention_mask[:, None, None, :] != 0)
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, seq_len, -1))


def broken() -> nn.Module:
    class MoonshineStreamingEncoderAttention(_MoonshineStreamingEncoderAttentionBase):
        @staticmethod
        def sliding_window_mask_function(sliding_window: tuple[int, int]) -> Callable:
            left_window_size, right_window_size = sliding_window

            def inner_mask(q_idx, kv_idx):
                dist = q_idx - kv_idx
                left_mask = (dist >= 0) & (dist < left_window_size)
                right_mask = (dist < 0) & (-dist < right_window_size)
                return left_mask | right_mask

            return inner_mask

    torch.manual_seed(0)
    return MoonshineStreamingEncoderAttention(32, 4, sliding_window=(4, 2))


def fixed() -> nn.Module:
    class MoonshineStreamingEncoderAttention(_MoonshineStreamingEncoderAttentionBase):
        @staticmethod
        def sliding_window_mask_function(sliding_window: tuple[int, int]) -> Callable:
            left_window_size, right_window_size = sliding_window

            def inner_mask(q_idx, kv_idx):
                dist = q_idx - kv_idx
                left_mask = (dist >= 0) & (dist < left_window_size)
                right_mask = (dist < 0) & (-dist <= right_window_size)
                return left_mask | right_mask

            return inner_mask

    torch.manual_seed(0)
    return MoonshineStreamingEncoderAttention(32, 4, sliding_window=(4, 2))


def example():
    g = torch.Generator().manual_seed(17)
    x = torch.randn(2, 12, 32, generator=g)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 11:] = 0
    return (x,), {"attention_mask": mask}
