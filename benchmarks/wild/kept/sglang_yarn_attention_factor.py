"""attention_factor, the final YaRN magnitude, is multiplied once more by the magnitude computed from the factor.

sgl-project/sglang #33558 (2026)
https://github.com/sgl-project/sglang/pull/33558
"""
import math
from typing import Any, Dict

import torch
from torch import nn


def yarn_get_mscale_simple(scale: float = 1) -> float:
    if scale <= 1:
        return 1.0
    return 0.1 * math.log(scale) + 1.0


def yarn_linear_ramp_mask(low, high, dim):
    return ((torch.arange(dim).float() - low) / max(high - low, 0.001)).clamp(0, 1)


class YaRNScalingRotaryEmbedding(nn.Module):
    """RotaryEmbedding extended with the YaRN method; cos and sin carry the magnitude `mscale`.

    `attn_factor` is a multiplier on top of the magnitude `0.1 * ln(scaling_factor) + 1`.
    """

    def __init__(self, head_size, max_position, base, scaling_factor, attn_factor=1.0, beta_fast=32, beta_slow=1):
        super().__init__()
        self.mscale = float(yarn_get_mscale_simple(scaling_factor) * attn_factor)
        pos_freqs = base ** (torch.arange(0, head_size, 2).float() / head_size)
        find = lambda rot: head_size * math.log(max_position / (rot * 2 * math.pi)) / (2 * math.log(base))
        low, high = max(math.floor(find(beta_fast)), 0), min(math.ceil(find(beta_slow)), head_size - 1)
        inv_freq_mask = 1 - yarn_linear_ramp_mask(low, high, head_size // 2)
        inv_freq = (1 - inv_freq_mask) / (scaling_factor * pos_freqs) + inv_freq_mask / pos_freqs
        freqs = torch.outer(torch.arange(int(max_position * scaling_factor)).float(), inv_freq)
        self.register_buffer("cos_cache", freqs.cos() * self.mscale, persistent=False)
        self.register_buffer("sin_cache", freqs.sin() * self.mscale, persistent=False)

    def forward(self, positions, x):
        cos, sin = self.cos_cache[positions][..., None, :], self.sin_cache[positions][..., None, :]
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)


class _LagunaAttentionBase(nn.Module):
    """
    Args:
        rope_parameters: as in the Hugging Face config. `attention_factor` is the scaling applied on the
            cos / sin tables; if absent, it is inferred from `factor` as `0.1 * ln(factor) + 1`.
    """

    def __init__(self, hidden_size: int, num_heads: int, rope_parameters: Dict[str, Any]):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = YaRNScalingRotaryEmbedding(
            self.head_dim, rope_parameters["original_max_position_embeddings"], rope_parameters["rope_theta"],
            rope_parameters["factor"], attn_factor=self.get_attn_factor(rope_parameters))

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        """positions: (batch, seq_len); hidden_states: (batch, seq_len, hidden_size), causal."""
        q, k, v = self.qkv_proj(hidden_states).unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(2)
        q, k = self.rotary_emb(positions, q), self.rotary_emb(positions, k)
        out = nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2))


ROPE = {"rope_type": "yarn", "factor": 16.0, "attention_factor": 1.2772588722239782,
        "original_max_position_embeddings": 16, "rope_theta": 10000.0}


def broken() -> nn.Module:
    class LagunaAttention(_LagunaAttentionBase):
        @staticmethod
        def get_attn_factor(rope_parameters):
            return rope_parameters.get("attention_factor", 1.0)

    torch.manual_seed(0)
    return LagunaAttention(32, 2, ROPE)


def fixed() -> nn.Module:
    class LagunaAttention(_LagunaAttentionBase):
        @staticmethod
        def get_attn_factor(rope_parameters):
            attention_factor = rope_parameters.get("attention_factor")
            if attention_factor is None:
                return 1.0
            return attention_factor / yarn_get_mscale_simple(rope_parameters["factor"])

    torch.manual_seed(0)
    return LagunaAttention(32, 2, ROPE)


def example():
    g = torch.Generator().manual_seed(26)
    return (torch.arange(12).expand(2, -1), torch.randn(2, 12, 32, generator=g)), {}
