import math

import torch
from torch import nn


class RelPositionMultiHeadedAttention(nn.Module):
    """Multi-head self-attention with relative position encoding, as used in Conformer encoders.

    Paper: https://arxiv.org/abs/1901.02860, in the form that also covers the right context: for T frames
    there are 2T - 1 encodings, from relative position T - 1 (far left) down to -(T - 1).

    Args:
        n_head (int): The number of heads.
        n_feat (int): The number of features.
        dropout_rate (float): Dropout rate of the attention weights.
    """

    def __init__(self, n_head=4, n_feat=256, dropout_rate=0.1):
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
        # these two learnable biases are used in matrix c and matrix d
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(p=dropout_rate)

    def pos_encoding(self, x):
        """Sinusoidal encodings (1, 2 * time - 1, n_feat) of the relative positions time - 1 ... -(time - 1)."""
        time = x.size(1)
        position = torch.arange(time - 1, -time, -1, device=x.device, dtype=torch.float32).unsqueeze(1)
        div_term = torch.exp(
            torch.arange(0, self.n_feat, 2, device=x.device, dtype=torch.float32) * -(math.log(10000.0) / self.n_feat)
        )
        pe = torch.zeros(2 * time - 1, self.n_feat, device=x.device)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        return pe.unsqueeze(0).to(x.dtype)

    def rel_shift(self, x):
        """(batch, head, time, 2*time-1) by encoding index -> (batch, head, time, time) by key position."""
        zero_pad = torch.zeros((*x.size()[:3], 1), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(*x.size()[:2], x.size(3) + 1, x.size(2))
        # only keep the positions from 0 to time
        return x_padded[:, :, 1:].reshape(x.shape)[:, :, :, : x.size(-1) // 2 + 1]

    def forward(self, x, mask=None):
        """Compute attention.

        Args:
            x (torch.Tensor): Input (#batch, time, n_feat).
            mask (torch.Tensor): Bool mask, True where attention is allowed,
                (#batch, 1, time) or (#batch, time, time).

        Returns:
            torch.Tensor: Output (#batch, time, n_feat).
        """
        n_batch = x.size(0)
        q = self.linear_q(x).view(n_batch, -1, self.h, self.d_k)
        k = self.linear_k(x).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(n_batch, -1, self.h, self.d_k).transpose(1, 2)

        pos_emb = self.pos_encoding(x)
        p = self.linear_pos(pos_emb).view(1, -1, self.h, self.d_k).transpose(1, 2)

        q_with_bias_u = (q + self.pos_bias_u).transpose(1, 2)
        q_with_bias_v = (q + self.pos_bias_v).transpose(1, 2)

        matrix_ac = torch.matmul(q_with_bias_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_with_bias_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

        if mask is not None:
            mask = mask.unsqueeze(1).eq(0)
            scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
            attn = torch.softmax(scores, dim=-1).masked_fill(mask, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)

        out = torch.matmul(self.dropout(attn), v)
        out = out.transpose(1, 2).contiguous().view(n_batch, -1, self.h * self.d_k)
        return self.linear_out(out)
