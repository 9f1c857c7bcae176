import torch
import torch.nn as nn


class PointWiseFeedForward(nn.Module):
    def __init__(self, dim, p):
        super().__init__()
        self.conv1 = nn.Conv1d(dim, dim, kernel_size=1)
        self.conv2 = nn.Conv1d(dim, dim, kernel_size=1)
        self.drop1, self.drop2 = nn.Dropout(p), nn.Dropout(p)

    def forward(self, x):
        y = self.drop1(self.conv1(x.transpose(-1, -2)))
        y = self.drop2(self.conv2(y.relu()))
        return y.transpose(-1, -2) + x


class SASRec(nn.Module):
    """Self-attentive sequential recommendation.

    ``log_seqs`` [B, T] are item ids, 0 is padding (usually at the left). Like the
    original TensorFlow code only the queries are layer-normed before the attention,
    keys and values are the raw states, and the residual starts at the normed query.
    Output: features [B, T, D], zero at padding; scores are dot products with item
    embeddings.
    """

    def __init__(self, num_items=500, dim=48, num_heads=1, num_blocks=2, maxlen=50, dropout=0.2):
        super().__init__()
        self.dim = dim
        self.h = num_heads
        self.item_emb = nn.Embedding(num_items + 1, dim, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen + 1, dim, padding_idx=0)
        self.emb_dropout = nn.Dropout(dropout)
        self.attn_dropout = nn.Dropout(dropout)
        self.ln_q = nn.ModuleList(nn.LayerNorm(dim, eps=1e-8) for _ in range(num_blocks))
        self.ln_f = nn.ModuleList(nn.LayerNorm(dim, eps=1e-8) for _ in range(num_blocks))
        self.wq = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_blocks))
        self.wk = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_blocks))
        self.wv = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_blocks))
        self.ffn = nn.ModuleList(PointWiseFeedForward(dim, dropout) for _ in range(num_blocks))
        self.last = nn.LayerNorm(dim, eps=1e-8)

    def attend(self, i, query, state, blocked):
        B, T, D = query.shape
        q = self.wq[i](query).view(B, T, self.h, -1).transpose(1, 2)
        k = self.wk[i](state).view(B, T, self.h, -1).transpose(1, 2)
        v = self.wv[i](state).view(B, T, self.h, -1).transpose(1, 2)
        logits = q @ k.transpose(-1, -2) / (D // self.h) ** 0.5
        # padded queries have no key left: finite fill, their rows are zeroed afterwards
        logits = logits.masked_fill(blocked, torch.finfo(logits.dtype).min)
        p = self.attn_dropout(logits.softmax(-1))
        return (p @ v).transpose(1, 2).reshape(B, T, D)

    def forward(self, log_seqs):
        real = log_seqs != 0
        keep = real.unsqueeze(-1)
        positions = real.long().cumsum(1) * real.long()
        x = self.item_emb(log_seqs) * self.dim ** 0.5 + self.pos_emb(positions)
        x = self.emb_dropout(x) * keep

        T = log_seqs.size(1)
        future = torch.ones(T, T, dtype=torch.bool, device=log_seqs.device).triu(1)
        blocked = future[None, None] | ~real[:, None, None, :]

        for i in range(len(self.ffn)):
            q = self.ln_q[i](x)
            x = q + self.attend(i, q, x, blocked)
            x = self.ffn[i](self.ln_f[i](x)) * keep
        return self.last(x) * keep
