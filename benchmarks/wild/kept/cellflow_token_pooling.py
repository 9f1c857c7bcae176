"""The class token row of the enlarged mask stays all ones, so the pooled token reads padded set elements.

theislab/CellFlow #226 (2025)
https://github.com/theislab/CellFlow/issues/226
"""
import torch
import torch.nn as nn


class _TokenAttentionPoolingBase(nn.Module):
    """Multi-head attention which aggregates sets by learning a token.

    Parameters
    ----------
    input_dim
        Dimensionality of the set elements.
    num_heads
        Number of attention heads.
    qkv_dim
        Dimensionality of the query, key, and value.
    """

    def __init__(self, input_dim: int, num_heads: int = 4, qkv_dim: int = 32):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = qkv_dim // num_heads
        self.class_token = nn.Embedding(1, input_dim)
        self.query = nn.Linear(input_dim, qkv_dim)
        self.key = nn.Linear(input_dim, qkv_dim)
        self.value = nn.Linear(input_dim, qkv_dim)
        self.out = nn.Linear(qkv_dim, input_dim)

    def attention(self, z, mask):
        b, n, _ = z.shape
        q, k, v = (f(z).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
                   for f in (self.query, self.key, self.value))
        logits = q @ k.transpose(-1, -2) / self.head_dim ** 0.5
        logits = torch.where(mask > 0, logits, torch.finfo(logits.dtype).min)
        y = torch.softmax(logits, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(b, n, -1))


def broken() -> nn.Module:
    class TokenAttentionPooling(_TokenAttentionPoolingBase):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """Forward pass.

            Parameters
            ----------
            x
                Input tensor of shape (batch_size, set_size, input_dim).
            mask
                Mask tensor of shape (batch_size, 1 | num_heads, set_size, set_size), 1 where the key is a
                real element of the set and 0 where it is padding.

            Returns
            -------
            Output tensor of shape (batch_size, input_dim).
            """
            class_token = self.class_token(torch.zeros(len(x), 1, dtype=torch.long, device=x.device))
            z = torch.cat((class_token, x), dim=-2)
            token_mask = torch.ones(x.shape[0], 1, x.shape[1] + 1, x.shape[1] + 1, device=x.device)
            token_mask[:, :, 1:, 1:] = mask
            z = self.attention(z, token_mask)
            return z[:, 0, :]

    torch.manual_seed(0)
    return TokenAttentionPooling(24)


def fixed() -> nn.Module:
    class TokenAttentionPooling(_TokenAttentionPoolingBase):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            """Forward pass.

            Parameters
            ----------
            x
                Input tensor of shape (batch_size, set_size, input_dim).
            mask
                Mask tensor of shape (batch_size, 1 | num_heads, set_size, set_size), 1 where the key is a
                real element of the set and 0 where it is padding.

            Returns
            -------
            Output tensor of shape (batch_size, input_dim).
            """
            class_token = self.class_token(torch.zeros(len(x), 1, dtype=torch.long, device=x.device))
            z = torch.cat((class_token, x), dim=-2)
            token_mask = torch.ones(x.shape[0], 1, x.shape[1] + 1, x.shape[1] + 1, device=x.device)
            token_mask[:, :, 1:, 1:] = mask
            token_mask[:, :, 0, 1:] = (mask.sum(dim=-2) > 0).to(token_mask.dtype)
            z = self.attention(z, token_mask)
            return z[:, 0, :]

    torch.manual_seed(0)
    return TokenAttentionPooling(24)


def example():
    g = torch.Generator().manual_seed(4)
    x = torch.randn(2, 6, 24, generator=g)
    real = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1.]])
    mask = real[:, None, None, :].repeat(1, 1, 6, 1)
    return (x, mask), {}
