"""iTransformer: every variate is one token, attention runs across variates (Liu et al., 2024)."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class VariateAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, L, D = x.shape
        H = self.n_heads
        queries = self.query_projection(x).view(B, L, H, D // H)
        keys = self.key_projection(x).view(B, L, H, D // H)
        values = self.value_projection(x).view(B, L, H, D // H)
        scale = 1.0 / math.sqrt(D // H)
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        A = self.dropout(torch.softmax(scale * scores, dim=-1))
        V = torch.einsum("bhls,bshd->blhd", A, values)
        return self.out_projection(V.reshape(B, L, D)), A


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.attention = VariateAttention(d_model, n_heads, dropout)
        self.conv1 = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.conv2 = nn.Conv1d(d_ff, d_model, kernel_size=1)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        new_x, attn = self.attention(x)
        x = self.norm1(x + self.dropout(new_x))
        y = self.dropout(F.gelu(self.conv1(x.transpose(-1, 1))))
        y = self.dropout(self.conv2(y).transpose(-1, 1))
        return self.norm2(x + y), attn


class ITransformer(nn.Module):
    """
    Args of forward:
        x_enc:      (B, seq_len, N) history of the N variates
        x_mark_enc: (B, seq_len, K) calendar features, or None
    Returns:
        forecast (B, pred_len, N) and, with ``output_attention=True``, also the list of attention
        maps over the N + K tokens.

    There is no positional encoding on purpose: the order of the variates carries no meaning, the
    order of the time steps is kept by the linear embedding of the whole series.
    """

    def __init__(self, seq_len=96, pred_len=24, d_model=128, n_heads=4, e_layers=2, d_ff=256,
                 dropout=0.1, use_norm=True, output_attention=False):
        super().__init__()
        self.pred_len = pred_len
        self.use_norm = use_norm
        self.output_attention = output_attention
        self.value_embedding = nn.Linear(seq_len, d_model)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(e_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.projector = nn.Linear(d_model, pred_len)

    def forward(self, x_enc, x_mark_enc=None):
        N = x_enc.size(2)
        if self.use_norm:
            means = x_enc.mean(1, keepdim=True).detach()
            x_enc = x_enc - means
            stdev = torch.sqrt(x_enc.var(dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
            x_enc = x_enc / stdev

        tokens = x_enc.permute(0, 2, 1)
        if x_mark_enc is not None:
            tokens = torch.cat([tokens, x_mark_enc.permute(0, 2, 1)], dim=1)
        h = self.dropout(self.value_embedding(tokens))
        attns = []
        for layer in self.layers:
            h, attn = layer(h)
            attns.append(attn)
        # the calendar tokens are context only and are cut off again
        dec = self.projector(self.norm(h)).permute(0, 2, 1)[:, :, :N]

        if self.use_norm:
            dec = dec * stdev + means
        if self.output_attention:
            return dec, attns
        return dec
