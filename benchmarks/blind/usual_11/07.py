import torch
import torch.nn as nn
import torch.nn.functional as F


class ScaledDotProductAttention(nn.Module):
    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.bmm(q, k.transpose(1, 2)) / self.temperature
        if mask is not None:
            attn = attn.masked_fill(mask, -1e9)
        attn = self.dropout(F.softmax(attn, dim=2))
        return torch.bmm(attn, v), attn


class MultiHeadAttention(nn.Module):
    """
    Multi-Head Attention module.

    q: (batch, len_q, d_model), k and v: (batch, len_k, d_model)
    mask: bool (batch, len_q, len_k), True where attention is not allowed
    """

    def __init__(self, n_head=4, d_model=64, d_k=16, d_v=16, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.d_k = d_k
        self.d_v = d_v

        self.w_qs = nn.Linear(d_model, n_head * d_k)
        self.w_ks = nn.Linear(d_model, n_head * d_k)
        self.w_vs = nn.Linear(d_model, n_head * d_v)
        nn.init.xavier_normal_(self.w_qs.weight)
        nn.init.xavier_normal_(self.w_ks.weight)
        nn.init.xavier_normal_(self.w_vs.weight)

        self.attention = ScaledDotProductAttention(temperature=d_k ** 0.5, attn_dropout=dropout)
        self.fc = nn.Linear(n_head * d_v, d_model)
        self.layer_norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        n_head, d_k, d_v = self.n_head, self.d_k, self.d_v
        sz_b, len_q, _ = q.size()
        len_k = k.size(1)
        residual = q

        q = self.w_qs(q).view(sz_b, len_q, n_head, d_k)
        k = self.w_ks(k).view(sz_b, len_k, n_head, d_k)
        v = self.w_vs(v).view(sz_b, len_k, n_head, d_v)

        q = q.transpose(1, 2).reshape(sz_b * n_head, len_q, d_k)
        k = k.transpose(1, 2).reshape(sz_b * n_head, len_k, d_k)
        v = v.transpose(1, 2).reshape(sz_b * n_head, len_k, d_v)

        if mask is not None:
            mask = mask.repeat(n_head, 1, 1)
        output, attn = self.attention(q, k, v, mask=mask)

        output = output.view(sz_b, n_head, len_q, d_v)
        output = output.transpose(1, 2).reshape(sz_b, len_q, n_head * d_v)
        output = self.dropout(self.fc(output))
        output = self.layer_norm(output + residual)
        return output, attn.view(sz_b, n_head, len_q, len_k)
