import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPositionMultiHeadedAttention(nn.Module):
    """Self-attention with relative positions for a Conformer encoder.

    ``pos_emb`` inside covers the offsets T-1 ... -(T-1), i.e. 2T-1 rows.

    Args of forward:
        x: (B, T, n_feat)
        lengths: (B,) number of valid frames, optional
    """

    def __init__(self, n_feat: int = 64, n_head: int = 4, dropout_rate: float = 0.0):
        super().__init__()
        assert n_feat % n_head == 0
        self.d_k = n_feat // n_head
        self.h = n_head
        self.n_feat = n_feat
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

    def positions(self, T, device):
        pos = torch.arange(T - 1, -T, -1, dtype=torch.float32, device=device).unsqueeze(1)
        div = torch.exp(
            torch.arange(0, self.n_feat, 2, dtype=torch.float32, device=device)
            * -(math.log(10000.0) / self.n_feat)
        )
        pe = torch.zeros(2 * T - 1, self.n_feat, device=device)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        return pe

    @staticmethod
    def rel_shift(x):
        b, h, t, n = x.shape
        x = F.pad(x, (1, 0)).view(b, h, n + 1, t)
        return x[:, :, 1:].reshape(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x, lengths=None):
        B, T, _ = x.shape
        q = self.linear_q(x).view(B, T, self.h, self.d_k)
        k = self.linear_k(x).view(B, T, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(B, T, self.h, self.d_k).transpose(1, 2)
        pe = self.positions(T, x.device).to(x.dtype)
        p = self.linear_pos(pe).view(2 * T - 1, self.h, self.d_k).transpose(0, 1)

        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        ac = q_u @ k.transpose(-2, -1)
        bd = self.rel_shift(q_v @ p.transpose(-2, -1))
        scores = (ac + bd) / math.sqrt(self.d_k)

        if lengths is not None:
            pad = torch.arange(T, device=x.device)[None, :] >= lengths[:, None]
            pad = pad[:, None, None, :]
            scores = scores.masked_fill(pad, torch.finfo(scores.dtype).min)
            attn = torch.softmax(scores, dim=-1).masked_fill(pad, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)

        out = self.dropout(attn) @ v
        return self.linear_out(out.transpose(1, 2).reshape(B, T, -1))
