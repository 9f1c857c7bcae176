"""SASRec: Self-Attentive Sequential Recommendation (Kang & McAuley, 2018)."""
import math

import torch
import torch.nn as nn


class CausalAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def _split(self, x):
        b, t, d = x.shape
        return x.reshape(b, t, self.num_heads, d // self.num_heads).transpose(1, 2)

    def forward(self, x, allowed):
        q, k, v = self._split(self.q_proj(x)), self._split(self.k_proj(x)), self._split(self.v_proj(x))
        logits = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(q.size(-1))
        logits = logits.masked_fill(~allowed, float("-inf"))
        weights = self.dropout(torch.softmax(logits, dim=-1))
        out = torch.einsum("bhij,bhjd->bhid", weights, v)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class PointWiseFeedForward(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.conv1 = nn.Conv1d(dim, dim, kernel_size=1)
        self.conv2 = nn.Conv1d(dim, dim, kernel_size=1)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        y = self.drop(torch.relu(self.conv1(x.transpose(1, 2))))
        return self.drop(self.conv2(y)).transpose(1, 2)


class SASRec(nn.Module):
    """Item ids are 1..num_items, 0 is padding; histories are padded on the left."""

    def __init__(self, num_items=5000, dim=64, num_heads=2, num_blocks=2, max_len=50, dropout=0.2):
        super().__init__()
        self.max_len = max_len
        self.item_emb = nn.Embedding(num_items + 1, dim, padding_idx=0)
        self.pos_emb = nn.Embedding(max_len, dim)
        self.emb_dropout = nn.Dropout(dropout)
        self.attn_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_blocks))
        self.attns = nn.ModuleList(CausalAttention(dim, num_heads, dropout) for _ in range(num_blocks))
        self.ffn_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_blocks))
        self.ffns = nn.ModuleList(PointWiseFeedForward(dim, dropout) for _ in range(num_blocks))
        self.last_norm = nn.LayerNorm(dim)

    def encode(self, seqs):
        b, t = seqs.shape
        assert t <= self.max_len, "history too long, keep the last max_len items"
        real = seqs.ne(0)
        # right-align the positions so that the newest item always gets the last one
        positions = torch.arange(self.max_len - t, self.max_len, device=seqs.device)
        x = self.item_emb(seqs) * math.sqrt(self.item_emb.embedding_dim)
        x = self.emb_dropout(x + self.pos_emb(positions))
        keep = real.unsqueeze(-1).to(x.dtype)
        x = x * keep

        causal = torch.ones(t, t, dtype=torch.bool, device=seqs.device).tril()
        eye = torch.eye(t, dtype=torch.bool, device=seqs.device)
        # padded queries keep themselves, otherwise their softmax would be over nothing
        allowed = ((causal & real.unsqueeze(1)) | eye).unsqueeze(1)
        for norm1, attn, norm2, ffn in zip(self.attn_norms, self.attns, self.ffn_norms, self.ffns):
            x = x + attn(norm1(x), allowed)
            x = x + ffn(norm2(x))
            x = x * keep
        return self.last_norm(x)

    def forward(self, seqs, pos_items, neg_items):
        """Scores of the true next items and of sampled negatives, both (batch, len)."""
        feats = self.encode(seqs)
        pos_logits = (feats * self.item_emb(pos_items)).sum(-1)
        neg_logits = (feats * self.item_emb(neg_items)).sum(-1)
        return pos_logits, neg_logits

    def predict(self, seqs, candidates):
        """Scores of ``candidates`` (batch, n) as the item after the whole history."""
        last = self.encode(seqs)[:, -1]
        return torch.einsum("bd,bnd->bn", last, self.item_emb(candidates))
