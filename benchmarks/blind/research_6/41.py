import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPositionMultiHeadedAttention(nn.Module):
    """Conformer attention module with relative positions (Transformer-XL, appendix B).

    pos_emb holds the encodings of the relative positions T-1, ..., 0, ..., -(T-1), the
    logit of (i, j) is ((q_i + u) k_j + (q_i + v) r_{i-j}) / sqrt(d_k).

    x: [B, T, C], mask: bool [B, T] (True = frame is valid)
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, dropout: float = 0.1):
        super().__init__()
        self.dim = dim
        self.h = num_heads
        self.d_k = dim // num_heads
        self.norm = nn.LayerNorm(dim)
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_out = nn.Linear(dim, dim)
        self.linear_pos = nn.Linear(dim, dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(self.h, self.d_k))
        self.pos_bias_v = nn.Parameter(torch.empty(self.h, self.d_k))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)
        self.dropout = nn.Dropout(dropout)

    def pos_emb(self, T, device):
        rel = torch.arange(T - 1, -T, -1.0, device=device)
        div = torch.exp(torch.arange(0, self.dim, 2.0, device=device) * -(math.log(10000.0) / self.dim))
        ang = rel[:, None] * div
        return torch.stack((ang.sin(), ang.cos()), dim=-1).flatten(1)

    def rel_shift(self, x):
        B, H, T, P = x.shape
        x = F.pad(x, (1, 0))
        x = x.view(B, H, T, P + 1)[..., 1:]
        return x[..., : P // 2 + 1]

    def forward(self, x: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, T, _ = x.shape
        y = self.norm(x)
        q = self.linear_q(y).view(B, T, self.h, self.d_k)
        k = self.linear_k(y).view(B, T, self.h, self.d_k).transpose(1, 2)
        v = self.linear_v(y).view(B, T, self.h, self.d_k).transpose(1, 2)
        p = self.linear_pos(self.pos_emb(T, x.device).to(x.dtype)).view(-1, self.h, self.d_k).transpose(0, 1)

        q_u = (q + self.pos_bias_u).transpose(1, 2)
        q_v = (q + self.pos_bias_v).transpose(1, 2)
        matrix_ac = q_u @ k.transpose(-2, -1)
        matrix_bd = self.rel_shift(q_v @ p.transpose(-2, -1))
        scores = (matrix_ac + matrix_bd) / math.sqrt(self.d_k)

        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None, :], torch.finfo(scores.dtype).min)
        attn = self.dropout(scores.softmax(dim=-1))
        out = (attn @ v).transpose(1, 2).reshape(B, T, self.dim)
        return x + self.linear_out(out)
