import torch
import torch.nn as nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(torch.softmax(attn, dim=-1))
        return torch.matmul(attn, v), attn


class EncoderLayer(nn.Module):
    def __init__(self, d_model, d_inner, n_head, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        d_k = d_model // n_head
        self.w_qs = nn.Linear(d_model, d_model, bias=False)
        self.w_ks = nn.Linear(d_model, d_model, bias=False)
        self.w_vs = nn.Linear(d_model, d_model, bias=False)
        self.fc = nn.Linear(d_model, d_model, bias=False)
        self.attention = ScaledDotProductAttention(d_k ** 0.5, dropout)
        self.norm1 = nn.LayerNorm(d_model, eps=1e-6)
        self.norm2 = nn.LayerNorm(d_model, eps=1e-6)
        self.w_1 = nn.Linear(d_model, d_inner)
        self.w_2 = nn.Linear(d_inner, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        b, n, d = x.shape
        q = self.w_qs(x).view(b, n, self.n_head, -1).transpose(1, 2)
        k = self.w_ks(x).view(b, n, self.n_head, -1).transpose(1, 2)
        v = self.w_vs(x).view(b, n, self.n_head, -1).transpose(1, 2)
        y, _ = self.attention(q, k, v, mask=mask)
        y = y.transpose(1, 2).contiguous().view(b, n, d)
        x = self.norm1(x + self.dropout(self.fc(y)))
        return self.norm2(x + self.dropout(self.w_2(torch.relu(self.w_1(x)))))


class Encoder(nn.Module):
    """ids (batch, length) -> contextual embeddings (batch, length, d_model)"""

    def __init__(self, n_vocab=1000, d_model=64, d_inner=128, n_layers=2, n_head=4, pad_idx=0, max_len=256,
                 dropout=0.1):
        super().__init__()
        self.pad_idx = pad_idx
        self.word_emb = nn.Embedding(n_vocab, d_model, padding_idx=pad_idx)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([EncoderLayer(d_model, d_inner, n_head, dropout) for _ in range(n_layers)])
        self.dropout = nn.Dropout(dropout)

    def get_pad_mask(self, seq):
        return (seq != self.pad_idx).unsqueeze(1).unsqueeze(-1)

    def forward(self, ids):
        mask = self.get_pad_mask(ids)
        pos = torch.arange(ids.size(1), device=ids.device)
        x = self.dropout(self.word_emb(ids) + self.pos_emb(pos)[None])
        for layer in self.layers:
            x = layer(x, mask)
        return x
