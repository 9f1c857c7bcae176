import math

import torch
from torch import nn


class RelPositionMultiHeadedAttention(nn.Module):
    """Multi-head self-attention with relative positional encoding (Conformer / Transformer-XL).

    Args:
        n_feat (int): size of the features.
        n_head (int): number of heads.
        dropout_rate (float): dropout on the attention weights.
    """

    def __init__(self, n_feat: int = 144, n_head: int = 4, dropout_rate: float = 0.0):
        super().__init__()
        assert n_feat % n_head == 0 and n_feat % 2 == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        # no bias: pos_bias_v plays this role
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(p=dropout_rate)

    @staticmethod
    def relative_encoding(time: int, d_model: int, device, dtype) -> torch.Tensor:
        """Sinusoids for the distances ``time - 1, ..., 0, ..., -(time - 1)``, (1, 2*time-1, d_model)."""
        dist = torch.arange(time - 1, -time, -1.0, device=device).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2, device=device).float() * -(math.log(10000.0) / d_model))
        pe = torch.zeros(dist.size(0), d_model, device=device)
        pe[:, 0::2] = torch.sin(dist * div)
        pe[:, 1::2] = torch.cos(dist * div)
        return pe.unsqueeze(0).to(dtype)

    @staticmethod
    def rel_shift(x: torch.Tensor) -> torch.Tensor:
        """(batch, head, time1, 2*time1-1) -> (batch, head, time1, time1)."""
        zero_pad = x.new_zeros((*x.size()[:3], 1))
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
        x = x_padded[:, :, 1:].view_as(x)[:, :, :, : x.size(-1) // 2 + 1]
        return x

    def forward(self, x: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        """
        Args:
            x (torch.Tensor): (batch, time, size).
            mask (torch.Tensor): (batch, 1, time) or (batch, time, time), nonzero where attention is allowed.

        Returns:
            torch.Tensor: (batch, time, size). Rows without any allowed frame get a zero context.
        """
        n_batch, time, n_feat = x.shape
        pos_emb = self.relative_encoding(time, n_feat, x.device, x.dtype)

        q = self.linear_q(x).view(n_batch, time, self.h, self.d_k)
        k = self.linear_k(x).view(n_batch, time, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(n_batch, time, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)

        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)

        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

        if mask is not None:
            blocked = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
            attn = torch.softmax(scores, dim=-1).masked_fill(blocked, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)

        ctx = torch.matmul(self.dropout(attn), v)
        ctx = ctx.transpose(1, 2).contiguous().view(n_batch, time, self.h * self.d_k)
        return self.linear_out(ctx)
