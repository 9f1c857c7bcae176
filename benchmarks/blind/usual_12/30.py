import math

import torch
import torch.nn as nn


class MultiHead(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads, self.d_head = n_heads, d_model // n_heads
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask):
        B = query.shape[0]
        Q = self.fc_q(query).view(B, -1, self.n_heads, self.d_head).permute(0, 2, 1, 3)
        K = self.fc_k(key).view(B, -1, self.n_heads, self.d_head).permute(0, 2, 1, 3)
        V = self.fc_v(value).view(B, -1, self.n_heads, self.d_head).permute(0, 2, 1, 3)
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / math.sqrt(self.d_head)
        energy = energy.masked_fill(mask == 0, -1e10)
        x = torch.matmul(torch.softmax(energy, dim=-1), V)
        return self.fc_o(x.permute(0, 2, 1, 3).contiguous().view(B, -1, self.n_heads * self.d_head))


class Layer(nn.Module):
    def __init__(self, d_model, n_heads, pf_dim, dropout, cross):
        super().__init__()
        self.self_attn = MultiHead(d_model, n_heads)
        self.cross_attn = MultiHead(d_model, n_heads) if cross else None
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(3 if cross else 2))
        self.ff = nn.Sequential(nn.Linear(d_model, pf_dim), nn.ReLU(), nn.Linear(pf_dim, d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norms[0](x + self.dropout(self.self_attn(x, x, x, mask)))
        if self.cross_attn is not None:
            x = self.norms[1](x + self.dropout(self.cross_attn(x, memory, memory, memory_mask)))
        return self.norms[-1](x + self.dropout(self.ff(x)))


class Seq2SeqTransformer(nn.Module):
    """Encoder-decoder Transformer on padded batches of token ids."""

    def __init__(
        self, src_vocab=50, trg_vocab=50, d_model=32, n_heads=4, n_layers=2, pf_dim=64,
        dropout=0.1, max_length=64, src_pad_idx=0, trg_pad_idx=0,
    ):
        super().__init__()
        self.src_pad_idx, self.trg_pad_idx = src_pad_idx, trg_pad_idx
        self.src_tok = nn.Embedding(src_vocab, d_model)
        self.trg_tok = nn.Embedding(trg_vocab, d_model)
        self.src_pos = nn.Embedding(max_length, d_model)
        self.trg_pos = nn.Embedding(max_length, d_model)
        self.encoder = nn.ModuleList(Layer(d_model, n_heads, pf_dim, dropout, False) for _ in range(n_layers))
        self.decoder = nn.ModuleList(Layer(d_model, n_heads, pf_dim, dropout, True) for _ in range(n_layers))
        self.fc_out = nn.Linear(d_model, trg_vocab)
        self.scale = math.sqrt(d_model)

    def make_src_mask(self, src):
        return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(3)

    def make_trg_mask(self, trg):
        pad = (trg != self.trg_pad_idx).unsqueeze(1).unsqueeze(2)
        n = trg.shape[1]
        return pad & torch.tril(torch.ones((n, n), device=trg.device)).bool()

    def forward(self, src, trg):
        src_mask, trg_mask = self.make_src_mask(src), self.make_trg_mask(trg)
        x = self.src_tok(src) * self.scale + self.src_pos(torch.arange(src.shape[1], device=src.device))
        for layer in self.encoder:
            x = layer(x, src_mask)
        y = self.trg_tok(trg) * self.scale + self.trg_pos(torch.arange(trg.shape[1], device=trg.device))
        for layer in self.decoder:
            memory_mask = (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)
            y = layer(y, trg_mask, x, memory_mask)
        return self.fc_out(y)
