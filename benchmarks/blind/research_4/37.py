import numpy as np
import torch
import torch.nn as nn


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.conv2 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        y = self.dropout(torch.relu(self.conv1(x.transpose(1, 2))))
        return x + self.dropout(self.conv2(y)).transpose(1, 2)


class ItemAttention(nn.Module):
    def __init__(self, hidden, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.wq = nn.Linear(hidden, hidden)
        self.wk = nn.Linear(hidden, hidden)
        self.wv = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, kv, forbidden):
        b, t, c = q.shape
        d = c // self.num_heads
        Q = self.wq(q).view(b, t, self.num_heads, d).transpose(1, 2)
        K = self.wk(kv).view(b, t, self.num_heads, d).transpose(1, 2)
        V = self.wv(kv).view(b, t, self.num_heads, d).transpose(1, 2)
        att = Q @ K.transpose(-1, -2) / np.sqrt(d)
        att = att.masked_fill(forbidden, float("-inf"))
        att = self.dropout(torch.softmax(att, dim=-1))
        return (att @ V).transpose(1, 2).reshape(b, t, c)


class SASRec(nn.Module):
    """Self-attentive sequential recommendation.

    Item ids start at 1; 0 pads short histories on the left. Returns a state for each step, [B, T, hidden].
    """

    def __init__(self, item_num=500, maxlen=50, hidden=64, num_heads=2, num_blocks=2, dropout=0.2):
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, hidden, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden)
        self.emb_dropout = nn.Dropout(dropout)
        self.attn_norms = nn.ModuleList([nn.LayerNorm(hidden, eps=1e-8) for _ in range(num_blocks)])
        self.attns = nn.ModuleList([ItemAttention(hidden, num_heads, dropout) for _ in range(num_blocks)])
        self.ffn_norms = nn.ModuleList([nn.LayerNorm(hidden, eps=1e-8) for _ in range(num_blocks)])
        self.ffns = nn.ModuleList([PointWiseFeedForward(hidden, dropout) for _ in range(num_blocks)])
        self.last_norm = nn.LayerNorm(hidden, eps=1e-8)

    def forward(self, log_seqs):
        t = log_seqs.size(1)
        padding = log_seqs.eq(0)
        keep = (~padding).unsqueeze(-1).float()
        x = self.item_emb(log_seqs) * self.item_emb.embedding_dim**0.5
        x = self.emb_dropout(x + self.pos_emb(torch.arange(t, device=log_seqs.device)))
        x = x * keep

        future = torch.ones(t, t, dtype=torch.bool, device=log_seqs.device).triu(1)
        forbidden = future[None, None] | padding[:, None, None, :]
        for norm, attn, ffn_norm, ffn in zip(self.attn_norms, self.attns, self.ffn_norms, self.ffns):
            q = norm(x)
            x = q + attn(q, x, forbidden)
            x = ffn(ffn_norm(x))
            x = x * keep
        return self.last_norm(x)
