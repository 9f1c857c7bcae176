import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class QKNormCausalAttention(nn.Module):
    """Causal attention with query-key normalisation (Henry et al., 2020).

    The query and key vectors have unit length, so a logit is a cosine times a learned gain,
    initialised to log2(L^2 - L) for training sequences of length L.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4, train_seq_len: int = 128, dropout: float = 0.0):
        super().__init__()
        if d_model % n_heads:
            raise ValueError("d_model must be divisible by n_heads")
        self.n_heads = n_heads
        self.head_dim = d_model // n_heads
        self.w_qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.w_out = nn.Linear(d_model, d_model, bias=False)
        gain = math.log2(train_seq_len ** 2 - train_seq_len)
        self.gain = nn.Parameter(torch.full((n_heads, 1, 1), gain))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bsz, seq_len, d_model = x.shape

        qkv = self.w_qkv(x).view(bsz, seq_len, 3, self.n_heads, self.head_dim)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(dim=2))

        q = F.normalize(q, p=2, dim=2)
        k = F.normalize(k, p=2, dim=2)

        scores = torch.matmul(q, k.transpose(-2, -1)) * self.gain
        causal = torch.ones(seq_len, seq_len, dtype=torch.bool, device=x.device).triu(diagonal=1)
        scores = scores.masked_fill(causal, float("-inf"))
        attn = self.dropout(F.softmax(scores, dim=-1))

        out = torch.matmul(attn, v).transpose(1, 2).reshape(bsz, seq_len, d_model)
        return self.w_out(out)
