import math

import torch
import torch.nn as nn


class RelPositionalEncoding(nn.Module):
    """Encodings for the relative positions T-1, ..., 0, ..., -(T-1)."""

    def __init__(self, d_model):
        super().__init__()
        self.d_model = d_model

    def forward(self, length, device):
        pos = torch.arange(length - 1, -length, -1, device=device, dtype=torch.float32).unsqueeze(1)
        div = torch.exp(
            torch.arange(0, self.d_model, 2, device=device, dtype=torch.float32)
            * -(math.log(10000.0) / self.d_model)
        )
        pe = torch.zeros(2 * length - 1, self.d_model, device=device)
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        return pe.unsqueeze(0)


class ConformerSelfAttentionModule(nn.Module):
    """Pre-norm multi-head self attention module of the Conformer (without the residual,
    which the block adds). ``lengths``: number of valid frames of each utterance."""

    def __init__(self, d_model=64, num_heads=4, dropout_p=0.1):
        super().__init__()
        self.h = num_heads
        self.d_k = d_model // num_heads
        self.norm = nn.LayerNorm(d_model)
        self.pos_enc = RelPositionalEncoding(d_model)
        self.linear_q = nn.Linear(d_model, d_model)
        self.linear_k = nn.Linear(d_model, d_model)
        self.linear_v = nn.Linear(d_model, d_model)
        self.linear_pos = nn.Linear(d_model, d_model, bias=False)
        self.linear_out = nn.Linear(d_model, d_model)
        self.pos_bias_u = nn.Parameter(torch.zeros(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.zeros(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout_p)

    def rel_shift(self, x):
        b, h, qlen, pos_len = x.size()
        x = nn.functional.pad(x, pad=(1, 0))
        x = x.view(b, h, -1, qlen)
        x = x[:, :, 1:].reshape(b, h, qlen, pos_len)
        return x[..., :qlen]

    def forward(self, x, lengths=None):
        b, t, _ = x.shape
        x = self.norm(x)
        q = self.linear_q(x).view(b, t, self.h, self.d_k)
        k = self.linear_k(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(x).view(b, t, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(self.pos_enc(t, x.device).to(x.dtype)).view(1, -1, self.h, self.d_k).transpose(1, 2)

        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = torch.matmul(q_u, k.transpose(-2, -1))
        matrix_bd = self.rel_shift(torch.matmul(q_v, p.transpose(-2, -1)))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

        if lengths is not None:
            pad = torch.arange(t, device=x.device)[None, :] >= lengths[:, None]
            pad = pad[:, None, None, :]
            scores = scores.masked_fill(pad, -1e4)
            attn = torch.softmax(scores, dim=-1).masked_fill(pad, 0.0)
        else:
            attn = torch.softmax(scores, dim=-1)

        out = torch.matmul(self.dropout(attn), v)
        out = out.transpose(1, 2).reshape(b, t, self.h * self.d_k)
        return self.dropout(self.linear_out(out))
