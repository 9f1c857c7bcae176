"""The Transformer-XL shift with only T encodings is used without causal mask, so future keys get garbage positions.

espnet/espnet #2684 (2020)
https://github.com/espnet/espnet/issues/2684
"""
import math

import torch
from torch import nn


def sinusoid(pos: torch.Tensor, d_model: int) -> torch.Tensor:
    div_term = torch.exp(torch.arange(0, d_model, 2).float() * -(math.log(10000.0) / d_model))
    pe = torch.zeros(len(pos), d_model)
    pe[:, 0::2] = torch.sin(pos[:, None] * div_term)
    pe[:, 1::2] = torch.cos(pos[:, None] * div_term)
    return pe


class _RelPositionMultiHeadedAttentionBase(nn.Module):
    """Multi-Head Attention layer with relative position encoding, for the (bidirectional) Conformer encoder.

    Paper: https://arxiv.org/abs/1901.02860; the position term of query i and key j depends on i - j.

    Args:
        n_head (int): The number of heads.
        n_feat (int): The number of features.
    """

    def __init__(self, n_head, n_feat):
        super().__init__()
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        # linear transformation for positional encoding
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        # these two learnable bias are used in matrix c and matrix d
        self.pos_bias_u = nn.Parameter(torch.randn(n_head, self.d_k) * 0.3)
        self.pos_bias_v = nn.Parameter(torch.randn(n_head, self.d_k) * 0.3)

    def forward(self, x, mask):
        """
        Args:
            x (torch.Tensor): Input (#batch, time, size).
            mask (torch.Tensor): Mask tensor (#batch, 1, time), 1 for frames and 0 for padding.
        """
        n_batch, time, size = x.shape
        q = self.linear_q(x).view(n_batch, -1, self.h, self.d_k)
        k = self.linear_k(x).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(self.pos_emb(time, size)).view(1, -1, self.h, self.d_k).transpose(1, 2)
        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        scores = scores.masked_fill(mask.unsqueeze(1).eq(0), torch.finfo(scores.dtype).min)
        attn = torch.softmax(scores, dim=-1)
        return self.linear_out(torch.matmul(attn, v).transpose(1, 2).reshape(n_batch, time, size))


def broken() -> nn.Module:
    class RelPositionMultiHeadedAttention(_RelPositionMultiHeadedAttentionBase):
        def pos_emb(self, time, size):
            return sinusoid(torch.arange(time - 1, -1, -1).float(), size)

        def rel_shift(self, x):
            """Compute relative positinal encoding, x: (batch, head, time, time)."""
            zero_pad = torch.zeros((*x.size()[:3], 1), device=x.device, dtype=x.dtype)
            x_padded = torch.cat([zero_pad, x], dim=-1)
            x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
            return x_padded[:, :, 1:].view_as(x)

    torch.manual_seed(0)
    return RelPositionMultiHeadedAttention(4, 32)


def fixed() -> nn.Module:
    class RelPositionMultiHeadedAttention(_RelPositionMultiHeadedAttentionBase):
        def pos_emb(self, time, size):
            return sinusoid(torch.arange(time - 1, -time, -1).float(), size)

        def rel_shift(self, x):
            """Compute relative positinal encoding, x: (batch, head, time, 2*time-1)."""
            zero_pad = torch.zeros((*x.size()[:3], 1), device=x.device, dtype=x.dtype)
            x_padded = torch.cat([zero_pad, x], dim=-1)
            x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
            return x_padded[:, :, 1:].view_as(x)[..., : x.size(-1) // 2 + 1]

    torch.manual_seed(0)
    return RelPositionMultiHeadedAttention(4, 32)


def example():
    g = torch.Generator().manual_seed(29)
    x = torch.randn(2, 11, 32, generator=g)
    mask = torch.ones(2, 1, 11, dtype=torch.long)
    mask[1, :, 8:] = 0
    return (x, mask), {}
