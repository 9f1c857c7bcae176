"""The softmax runs over the query axis of the einsum scores instead of the key axis.

labmlai/annotated_deep_learning_paper_implementations #146 (2022)
https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146
"""
import torch
from torch import nn


class _AttentionBlockBase(nn.Module):
    """
    ### Attention block

    This is similar to transformer multi-head attention
    """

    def __init__(self, n_channels: int, n_heads: int = 1, d_k: int = None, n_groups: int = 8):
        """
        * `n_channels` is the number of channels in the input
        * `n_heads` is the number of heads in multi-head attention
        * `d_k` is the number of dimensions in each head
        * `n_groups` is the number of groups for group normalization
        """
        super().__init__()
        if d_k is None:
            d_k = n_channels
        self.norm = nn.GroupNorm(n_groups, n_channels)
        # Projections for query, key and values
        self.projection = nn.Linear(n_channels, n_heads * d_k * 3)
        # Linear layer for final transformation
        self.output = nn.Linear(n_heads * d_k, n_channels)
        # Scale for dot-product attention
        self.scale = d_k ** -0.5
        self.n_heads = n_heads
        self.d_k = d_k


def broken() -> nn.Module:
    class AttentionBlock(_AttentionBlockBase):
        def forward(self, x: torch.Tensor):
            """
            * `x` has shape `[batch_size, in_channels, height, width]`
            """
            batch_size, n_channels, height, width = x.shape
            # Change `x` to shape `[batch_size, seq, n_channels]`
            x = x.view(batch_size, n_channels, -1).permute(0, 2, 1)
            # Get query, key, and values (concatenated) and shape it to `[batch_size, seq, n_heads, 3 * d_k]`
            qkv = self.projection(self.norm(x.permute(0, 2, 1)).permute(0, 2, 1))
            qkv = qkv.view(batch_size, -1, self.n_heads, 3 * self.d_k)
            # Split query, key, and values. Each of them will have shape `[batch_size, seq, n_heads, d_k]`
            q, k, v = torch.chunk(qkv, 3, dim=-1)
            # Calculate scaled dot-product $\\frac{Q K^\\top}{\\sqrt{d_k}}$
            attn = torch.einsum('bihd,bjhd->bijh', q, k) * self.scale
            # Softmax along the sequence dimension
            attn = attn.softmax(dim=1)
            # Multiply by values
            res = torch.einsum('bijh,bjhd->bihd', attn, v)
            # Reshape to `[batch_size, seq, n_heads * d_k]`
            res = res.reshape(batch_size, -1, self.n_heads * self.d_k)
            # Transform to `[batch_size, seq, n_channels]`
            res = self.output(res)
            # Add skip connection
            res += x
            # Change to shape `[batch_size, in_channels, height, width]`
            return res.permute(0, 2, 1).view(batch_size, n_channels, height, width)

    torch.manual_seed(0)
    return AttentionBlock(32, n_heads=4, d_k=8)


def fixed() -> nn.Module:
    class AttentionBlock(_AttentionBlockBase):
        def forward(self, x: torch.Tensor):
            """
            * `x` has shape `[batch_size, in_channels, height, width]`
            """
            batch_size, n_channels, height, width = x.shape
            # Change `x` to shape `[batch_size, seq, n_channels]`
            x = x.view(batch_size, n_channels, -1).permute(0, 2, 1)
            # Get query, key, and values (concatenated) and shape it to `[batch_size, seq, n_heads, 3 * d_k]`
            qkv = self.projection(self.norm(x.permute(0, 2, 1)).permute(0, 2, 1))
            qkv = qkv.view(batch_size, -1, self.n_heads, 3 * self.d_k)
            # Split query, key, and values. Each of them will have shape `[batch_size, seq, n_heads, d_k]`
            q, k, v = torch.chunk(qkv, 3, dim=-1)
            # Calculate scaled dot-product $\\frac{Q K^\\top}{\\sqrt{d_k}}$
            attn = torch.einsum('bihd,bjhd->bijh', q, k) * self.scale
            # Softmax along the sequence dimension
            attn = attn.softmax(dim=2)
            # Multiply by values
            res = torch.einsum('bijh,bjhd->bihd', attn, v)
            # Reshape to `[batch_size, seq, n_heads * d_k]`
            res = res.reshape(batch_size, -1, self.n_heads * self.d_k)
            # Transform to `[batch_size, seq, n_channels]`
            res = self.output(res)
            # Add skip connection
            res += x
            # Change to shape `[batch_size, in_channels, height, width]`
            return res.permute(0, 2, 1).view(batch_size, n_channels, height, width)

    torch.manual_seed(0)
    return AttentionBlock(32, n_heads=4, d_k=8)
