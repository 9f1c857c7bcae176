import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.conv2 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x):
        y = x.transpose(1, 2)
        y = self.dropout1(F.relu(self.conv1(y)))
        y = self.dropout2(self.conv2(y))
        return y.transpose(1, 2)


class SASRec(nn.Module):
    """Self-attentive sequential recommendation.

    Histories are right aligned: the oldest item is on the left, padding (id 0) is on the left too,
    the most recent item is always in the last column. Item ids are 1..n_items.
    """

    def __init__(self, n_items=1000, max_len=50, hidden=64, num_heads=2, num_blocks=2, dropout=0.2):
        super().__init__()
        self.max_len = max_len
        self.hidden = hidden
        self.num_heads = num_heads
        self.item_emb = nn.Embedding(n_items + 1, hidden, padding_idx=0)
        self.pos_emb = nn.Embedding(max_len, hidden)
        self.emb_dropout = nn.Dropout(dropout)

        self.attn_norms = nn.ModuleList()
        self.attns = nn.ModuleList()
        self.ffn_norms = nn.ModuleList()
        self.ffns = nn.ModuleList()
        for _ in range(num_blocks):
            self.attn_norms.append(nn.LayerNorm(hidden, eps=1e-8))
            self.attns.append(nn.MultiheadAttention(hidden, num_heads, dropout=dropout, batch_first=True))
            self.ffn_norms.append(nn.LayerNorm(hidden, eps=1e-8))
            self.ffns.append(PointWiseFeedForward(hidden, dropout))
        self.last_norm = nn.LayerNorm(hidden, eps=1e-8)

    def log2feats(self, seq):
        L = seq.size(1)
        if L > self.max_len:
            raise ValueError("history longer than max_len")
        pad = seq == 0
        x = self.item_emb(seq) * math.sqrt(self.hidden)
        # positions count back from the most recent item, whatever the width of the batch
        pos = torch.arange(L - 1, -1, -1, device=seq.device)
        x = self.emb_dropout(x + self.pos_emb(pos))
        x = x.masked_fill(pad.unsqueeze(-1), 0.0)

        # True = blocked: the future and padding; each position may always look at itself, so that
        # the padding rows on the left are not empty (they are zeroed after every block)
        causal = torch.ones(L, L, dtype=torch.bool, device=seq.device).triu(1)
        own = torch.eye(L, dtype=torch.bool, device=seq.device)
        blocked = (causal | pad.unsqueeze(1)) & ~own
        blocked = blocked.repeat_interleave(self.num_heads, dim=0)
        for attn_norm, attn, ffn_norm, ffn in zip(self.attn_norms, self.attns, self.ffn_norms, self.ffns):
            h = attn_norm(x)
            y, _ = attn(h, h, h, attn_mask=blocked, need_weights=False)
            x = x + y
            x = x + ffn(ffn_norm(x))
            x = x.masked_fill(pad.unsqueeze(-1), 0.0)
        return self.last_norm(x)

    def forward(self, seq, pos_items, neg_items):
        """Logits of the true next items and of sampled negatives, each (batch, length)."""
        feats = self.log2feats(seq)
        pos_logits = (feats * self.item_emb(pos_items)).sum(dim=-1)
        neg_logits = (feats * self.item_emb(neg_items)).sum(dim=-1)
        return pos_logits, neg_logits

    def loss(self, seq, pos_items, neg_items):
        pos_logits, neg_logits = self(seq, pos_items, neg_items)
        valid = (pos_items != 0).to(pos_logits.dtype)
        per_item = F.softplus(-pos_logits) + F.softplus(neg_logits)
        return (per_item * valid).sum() / valid.sum().clamp(min=1.0)

    @torch.no_grad()
    def predict(self, seq, candidates):
        """Scores (batch, n_candidates) of candidate items as the next item."""
        last = self.log2feats(seq)[:, -1]
        return torch.einsum("bd,bcd->bc", last, self.item_emb(candidates))
