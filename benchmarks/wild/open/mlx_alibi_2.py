"""ALiBi slopes use one geometric sequence for every head count, which is wrong unless it is a power of two.

ml-explore/mlx #3071 (2026)
https://github.com/ml-explore/mlx/pull/3071
"""
import math

import torch
import torch.nn as nn


class _ALiBiBase(nn.Module):
    """
    Attention with Linear Biases (Press et al. 2022). The slopes are those of the reference implementation,
    https://github.com/ofirpress/attention_with_linear_biases, as in BLOOM and MPT.
    """

    @classmethod
    def create_alibi_matrix(cls, q_sequence_length, k_sequence_length, num_heads, offset, dtype=torch.float32):
        x1 = torch.arange(offset, offset + q_sequence_length)
        x2 = torch.arange(0, k_sequence_length)
        distance_matrix = -torch.abs(x1[:, None] - x2[None, :])[None, None]
        alibi_slope = cls.create_alibi_slope(num_heads=num_heads)
        return (distance_matrix * alibi_slope).to(dtype)

    def forward(self, attention_scores, offset=0, mask=None):
        alibi_mask = self.create_alibi_matrix(
            q_sequence_length=attention_scores.shape[-2],
            k_sequence_length=attention_scores.shape[-1],
            num_heads=attention_scores.shape[1],
            offset=offset,
            dtype=attention_scores.dtype,
        ).to(attention_scores.device)
        if mask is not None:
            alibi_mask = alibi_mask + mask
        return attention_scores + alibi_mask


class _CausalAttention(nn.Module):
    def __init__(self, alibi, dims, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(dims, 3 * dims, bias=False)
        self.out_proj = nn.Linear(dims, dims, bias=False)
        self.alibi = alibi

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv_proj(x).chunk(3, dim=-1))
        scores = (q * math.sqrt(1 / q.shape[-1])) @ k.transpose(-2, -1)
        length = x.shape[1]
        causal = torch.full((length, length), float("-inf"), device=x.device).triu(1)
        scores = self.alibi(scores, mask=causal)
        return self.out_proj((scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))


def broken() -> nn.Module:
    class ALiBi(_ALiBiBase):
        @staticmethod
        def create_alibi_slope(num_heads):
            x = (2**8) ** (1 / num_heads)
            out = torch.tensor(x) ** -torch.arange(1, num_heads + 1)
            return out[:, None, None]

    torch.manual_seed(0)
    return _CausalAttention(ALiBi(), 48, 6)


def fixed() -> nn.Module:
    class ALiBi(_ALiBiBase):
        @staticmethod
        def create_alibi_slope(num_heads):
            def get_slopes(n):
                if math.log2(n).is_integer():
                    start = 2 ** (-(2 ** -(math.log2(n) - 3)))
                    return [start * start**i for i in range(n)]
                closest = 2 ** math.floor(math.log2(n))
                return get_slopes(closest) + get_slopes(2 * closest)[0::2][: n - closest]

            return torch.tensor(get_slopes(num_heads))[:, None, None]

    torch.manual_seed(0)
    return _CausalAttention(ALiBi(), 48, 6)
