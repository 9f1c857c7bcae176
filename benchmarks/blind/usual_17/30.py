import torch
import torch.nn as nn


class DenseGeneral(nn.Module):
    """Minimal counterpart of flax.linen.DenseGeneral for a (features -> heads, head_dim) kernel."""

    def __init__(self, in_features, heads, head_dim):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(in_features, heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, head_dim))
        nn.init.normal_(self.kernel, std=in_features ** -0.5)

    def forward(self, x):
        return torch.einsum("...c,chd->...hd", x, self.kernel) + self.bias


class FlaxStyleAttention(nn.Module):
    """Dot-product attention in the [batch, length, heads, head_dim] layout used by Flax.

    Checkpoints of linen.MultiHeadDotProductAttention load without transposing kernels.
    """

    def __init__(self, features=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = features // num_heads
        self.query = DenseGeneral(features, num_heads, self.head_dim)
        self.key = DenseGeneral(features, num_heads, self.head_dim)
        self.value = DenseGeneral(features, num_heads, self.head_dim)
        self.out_kernel = nn.Parameter(torch.empty(num_heads, self.head_dim, features))
        self.out_bias = nn.Parameter(torch.zeros(features))
        nn.init.normal_(self.out_kernel, std=features ** -0.5)

    def forward(self, inputs_q, inputs_kv=None, mask=None):
        """mask: broadcastable to [batch, heads, q_length, kv_length], True = attend."""
        inputs_kv = inputs_q if inputs_kv is None else inputs_kv
        query = self.query(inputs_q) / self.head_dim ** 0.5
        key = self.key(inputs_kv)
        value = self.value(inputs_kv)

        attn_weights = torch.einsum("bqhd,bkhd->bhqk", query, key)
        if mask is not None:
            attn_weights = torch.where(mask, attn_weights, torch.finfo(attn_weights.dtype).min)
        attn_weights = torch.softmax(attn_weights, dim=2)

        x = torch.einsum("bhqk,bkhd->bqhd", attn_weights, value)
        return torch.einsum("bqhd,hdc->bqc", x, self.out_kernel) + self.out_bias
