import math

import torch
from torch import nn


class RelPositionMultiHeadedAttention(nn.Module):
    """Multi-head self-attention with relative position encoding for the Conformer encoder.

    Every frame attends to the whole utterance, left and right.
    Paper: https://arxiv.org/abs/1901.02860 (Appendix B) and https://arxiv.org/abs/2005.08100

    Args:
        n_head (int): number of heads.
        n_feat (int): feature size.
        dropout_rate (float): dropout on the attention weights.
    """

    def __init__(self, n_feat=64, n_head=4, dropout_rate=0.1):
        super().__init__()
        assert n_feat % n_head == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.linear_q = nn.Linear(n_feat, n_feat)
        self.linear_k = nn.Linear(n_feat, n_feat)
        self.linear_v = nn.Linear(n_feat, n_feat)
        self.linear_out = nn.Linear(n_feat, n_feat)
        self.linear_pos = nn.Linear(n_feat, n_feat, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(p=dropout_rate)
        self.attn = None

    @staticmethod
    def position_encoding(length, dim, device):
        pos = torch.arange(length - 1, -1, -1.0, device=device).unsqueeze(1)
        div = torch.exp(torch.arange(0, dim, 2, device=device).float() * -(math.log(10000.0) / dim))
        pe = torch.zeros(length, dim, device=device)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        return pe.unsqueeze(0)

    def forward_qkv(self, query, key, value):
        n_batch = query.size(0)
        q = self.linear_q(query).view(n_batch, -1, self.h, self.d_k)
        k = self.linear_k(key).view(n_batch, -1, self.h, self.d_k)
        v = self.linear_v(value).view(n_batch, -1, self.h, self.d_k)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def rel_shift(self, x):
        """Align the position scores with the keys.

        Args:
            x: (batch, head, time1, time2)
        """
        zero_pad = torch.zeros((*x.size()[:3], 1), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
        return x_padded[:, :, 1:].view_as(x)

    def forward(self, x, mask=None):
        """
        Args:
            x: (batch, time, n_feat)
            mask: (batch, 1, time), non-zero for real frames.
        """
        n_batch, time, _ = x.shape
        q, k, v = self.forward_qkv(x, x, x)
        q = q.transpose(1, 2)

        pos_emb = self.position_encoding(time, self.h * self.d_k, x.device).to(x.dtype)
        p = self.linear_pos(pos_emb).view(1, time, self.h, self.d_k).transpose(1, 2)

        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)

        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = torch.matmul(q_with_bias_v, p.transpose(-2, -1))
        matrix_bd = self.rel_shift(matrix_bd)

        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)
        if mask is not None:
            mask = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            self.attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            self.attn = torch.softmax(scores, dim=-1)
        out = torch.matmul(self.dropout(self.attn), v)
        out = out.transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k)
        return self.linear_out(out)
