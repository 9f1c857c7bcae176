"""The layer norm runs over all dimensions but the first, so it mixes the tokens of a sequence (and leaks the future).

Qualcomm-AI-research/geometric-algebra-transformer #8 (2024)
https://github.com/Qualcomm-AI-research/geometric-algebra-transformer/pull/8
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class BaselineLayerNorm(nn.Module):
        """Layer norm over the channels."""

        def forward(self, inputs):
            shape = inputs.shape[1:] if rev == 1 else inputs.shape[-1:]
            return F.layer_norm(inputs, normalized_shape=shape)

    class BaselineSelfAttention(nn.Module):
        def __init__(self, channels, num_heads):
            super().__init__()
            self.num_heads = num_heads
            self.qkv_linear = nn.Linear(channels, 3 * channels)
            self.out_linear = nn.Linear(channels, channels)

        def forward(self, inputs, is_causal):
            B, T, C = inputs.shape
            q, k, v = self.qkv_linear(inputs).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            h = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
            return self.out_linear(h.transpose(1, 2).reshape(B, T, C))

    class BaselineTransformerBlock(nn.Module):
        """Pre-norm block, forward(inputs), (B, items, channels); is_causal: item i depends on items 0..i only."""

        def __init__(self, channels=32, num_heads=4, is_causal=True):
            super().__init__()
            self.is_causal = is_causal
            self.norm = BaselineLayerNorm()
            self.attention = BaselineSelfAttention(channels, num_heads)
            self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels))

        def forward(self, inputs):
            h = inputs + self.attention(self.norm(inputs), self.is_causal)
            return h + self.mlp(self.norm(h))

    torch.manual_seed(0)
    return BaselineTransformerBlock()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 8, 32) * torch.linspace(0.3, 2.0, 8)[None, :, None],), {}
