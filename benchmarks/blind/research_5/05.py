import math

import torch
from torch import nn


class RelPositionMultiHeadedAttention(nn.Module):
    """Multi-head self-attention of the Conformer with relative positional encoding.

    The positional table covers the distances ``T-1 ... -(T-1)``; after the shift the columns that
    belong to distances out of reach are cut off.

    Args:
        n_feat: model width.
        n_head: number of heads.
        dropout_rate: dropout on the attention weights.

    ``mask`` has shape (B, 1, T) or (B, T, T), non-zero for frames that may be attended to.  Rows
    without any valid frame come out as zero attention.
    """

    def __init__(self, n_feat: int = 64, n_head: int = 4, dropout_rate: float = 0.0):
        super().__init__()
        assert n_feat % n_head == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(n_head, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(n_head, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout_rate)

    def _pos_table(self, length: int, like: torch.Tensor) -> torch.Tensor:
        d = self.h * self.d_k
        position = torch.arange(length - 1, -length, -1, device=like.device, dtype=torch.float32)
        div = torch.exp(torch.arange(0, d, 2, device=like.device, dtype=torch.float32) * -(math.log(10000.0) / d))
        pe = torch.zeros(2 * length - 1, d, device=like.device)
        pe[:, 0::2] = torch.sin(position[:, None] * div)
        pe[:, 1::2] = torch.cos(position[:, None] * div)
        return pe.to(like.dtype)

    @staticmethod
    def rel_shift(x: torch.Tensor) -> torch.Tensor:
        b, h, t, p = x.shape
        x = torch.cat([x.new_zeros(b, h, t, 1), x], dim=-1)
        x = x.view(b, h, p + 1, t)
        x = x[:, :, 1:].reshape(b, h, t, p)
        return x[..., : p // 2 + 1]

    def forward(self, x: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.linear_q(x).view(b, t, self.h, self.d_k)
        k = self.linear_k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(self._pos_table(t, x)).view(1, 2 * t - 1, self.h, self.d_k).transpose(1, 2)

        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        content = q_u @ k.transpose(-2, -1)
        position = self.rel_shift(q_v @ p.transpose(-2, -1))
        scores = (content + position) / math.sqrt(self.d_k)

        if mask is not None:
            blocked = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
            attn = scores.softmax(dim=-1).masked_fill(blocked, 0.0)
        else:
            attn = scores.softmax(dim=-1)

        out = self.dropout(attn) @ v
        return self.linear_out(out.transpose(1, 2).reshape(b, t, self.h * self.d_k))
