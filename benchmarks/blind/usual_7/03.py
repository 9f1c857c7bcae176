import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        x = x + self.pe[: x.size(0)]
        return self.dropout(x)


class SelfAttention(nn.Module):
    def __init__(self, d_model, nhead, dropout):
        super().__init__()
        self.nhead = nhead
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = dropout

    def forward(self, x, keep):
        B, T, C = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.nhead, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=keep[:, None, None, :], dropout_p=self.dropout if self.training else 0.0
        )
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))


class SentenceClassifier(nn.Module):
    """Two-layer encoder for sentence classification. Input: token ids of shape (batch, seq_len)."""

    def __init__(self, vocab_size=1000, d_model=64, nhead=4, num_layers=2, num_classes=2, pad_idx=0, dropout=0.1):
        super().__init__()
        self.pad_idx = pad_idx
        self.d_model = d_model
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=pad_idx)
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        self.attn = nn.ModuleList([SelfAttention(d_model, nhead, dropout) for _ in range(num_layers)])
        self.ffn = nn.ModuleList(
            [nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))
             for _ in range(num_layers)]
        )
        self.norm1 = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(num_layers)])
        self.norm2 = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(num_layers)])
        self.fc = nn.Linear(d_model, num_classes)

    def forward(self, ids):
        keep = ids.ne(self.pad_idx)
        x = self.embedding(ids) * math.sqrt(self.d_model)
        x = self.pos_encoder(x)
        for attn, ffn, n1, n2 in zip(self.attn, self.ffn, self.norm1, self.norm2):
            x = n1(x + attn(x, keep))
            x = n2(x + ffn(x))
        w = keep.unsqueeze(-1).to(x.dtype)
        pooled = (x * w).sum(1) / w.sum(1).clamp(min=1.0)
        return self.fc(pooled)
