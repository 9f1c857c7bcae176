import torch
import torch.nn as nn


class SASRecBlock(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.attn_norm = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.ffn_norm = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, allowed):
        B, L, D = x.shape
        h = self.attn_norm(x)
        q = self.q(h).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k(h).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v(h).view(B, L, self.num_heads, self.head_dim).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) / self.head_dim ** 0.5
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        out = torch.matmul(attn, v).reshape(B, L, D)
        x = x + self.dropout(out)
        return x + self.dropout(self.ffn(self.ffn_norm(x)))


class SASRec(nn.Module):
    """Self-attentive sequential recommendation.

    ``log_seqs`` [B, L] holds item ids, 0 is padding. Returns the sequence features [B, L, D],
    zero at padded positions; scores are their dot products with the item embeddings.
    """

    def __init__(self, num_items: int = 100, dim: int = 48, num_heads: int = 2, num_blocks: int = 2,
                 maxlen: int = 50, dropout: float = 0.0):
        super().__init__()
        self.item_emb = nn.Embedding(num_items + 1, dim, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(SASRecBlock(dim, num_heads, dropout) for _ in range(num_blocks))
        self.last_norm = nn.LayerNorm(dim)

    def forward(self, log_seqs):
        L = log_seqs.size(1)
        real = log_seqs != 0
        x = self.item_emb(log_seqs) * self.item_emb.embedding_dim ** 0.5
        x = self.dropout(x + self.pos_emb(torch.arange(L, device=log_seqs.device)))
        causal = torch.ones(L, L, dtype=torch.bool, device=log_seqs.device).tril()
        allowed = causal & real[:, None, None, :]
        for block in self.blocks:
            x = block(x, allowed)
        return self.last_norm(x) * real.unsqueeze(-1)
