import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BertLayer(nn.Module):
    def __init__(self, hidden, heads, inter, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.ln1 = nn.LayerNorm(hidden, eps=1e-12)
        self.inter = nn.Linear(hidden, inter)
        self.out = nn.Linear(inter, hidden)
        self.ln2 = nn.LayerNorm(hidden, eps=1e-12)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, extended_mask):
        b, n, c = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads) + extended_mask
        ctx = (self.drop(scores.softmax(dim=-1)) @ v).transpose(1, 2).reshape(b, n, c)
        x = self.ln1(x + self.drop(self.dense(ctx)))
        return self.ln2(x + self.drop(self.out(F.gelu(self.inter(x)))))


class MeanPooling(nn.Module):
    """Average of the token embeddings, padding left out."""

    def forward(self, token_embeddings, attention_mask):
        input_mask_expanded = attention_mask.unsqueeze(-1).expand(token_embeddings.size()).to(token_embeddings.dtype)
        return torch.mean(token_embeddings * input_mask_expanded, dim=1)


class SentenceEncoder(nn.Module):
    """Bi-encoder tower for retrieval; embeddings are compared by dot product.

    Args:
        input_ids: (batch, seq)
        attention_mask: (batch, seq), 1 for tokens and 0 for padding
    """

    def __init__(self, vocab_size=1000, hidden=64, heads=4, layers=2, inter=128, max_len=64, dropout=0.1):
        super().__init__()
        self.word = nn.Embedding(vocab_size, hidden, padding_idx=0)
        self.position = nn.Embedding(max_len, hidden)
        self.ln = nn.LayerNorm(hidden, eps=1e-12)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList([BertLayer(hidden, heads, inter, dropout) for _ in range(layers)])
        self.pooling = MeanPooling()

    def forward(self, input_ids, attention_mask):
        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.drop(self.ln(self.word(input_ids) + self.position(pos)))
        extended_mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, extended_mask)
        return self.pooling(x, attention_mask)
