import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BertSelfAttention(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        b, n, d = x.shape
        q = self.query(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.key(x).view(b, n, self.heads, -1).transpose(1, 2)
        v = self.value(x).view(b, n, self.heads, -1).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~mask, float("-inf"))
        probs = self.dropout(F.softmax(scores, dim=-1))
        ctx = torch.matmul(probs, v).transpose(1, 2).reshape(b, n, d)
        return self.dense(ctx)


class BertLayer(nn.Module):
    def __init__(self, hidden, heads, intermediate, dropout):
        super().__init__()
        self.attention = BertSelfAttention(hidden, heads, dropout)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.intermediate = nn.Linear(hidden, intermediate)
        self.output = nn.Linear(intermediate, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        h = self.output(F.gelu(self.intermediate(x)))
        return self.output_norm(x + self.dropout(h))


class MiniBert(nn.Module):
    """Small BERT encoder. Input: token ids with ``pad_token_id`` behind the text.

    Returns the hidden states (batch, seq, hidden) and the pooled [CLS] vector.
    """

    def __init__(self, vocab_size=200, hidden=64, heads=4, layers=2, intermediate=128,
                 max_position=128, type_vocab=2, pad_token_id=0, dropout=0.1):
        super().__init__()
        self.pad_token_id = pad_token_id
        self.word = nn.Embedding(vocab_size, hidden, padding_idx=pad_token_id)
        self.position = nn.Embedding(max_position, hidden)
        self.token_type = nn.Embedding(type_vocab, hidden)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList([BertLayer(hidden, heads, intermediate, dropout) for _ in range(layers)])
        self.pooler = nn.Linear(hidden, hidden)

    def forward(self, input_ids, token_type_ids=None):
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        valid = input_ids != self.pad_token_id
        mask = (valid.unsqueeze(1) & valid.unsqueeze(2)).unsqueeze(1)

        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.word(input_ids) + self.position(pos) + self.token_type(token_type_ids)
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))
