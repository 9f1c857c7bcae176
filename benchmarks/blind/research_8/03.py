import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalItemAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.w_q = nn.Linear(dim, dim)
        self.w_k = nn.Linear(dim, dim)
        self.w_v = nn.Linear(dim, dim)
        self.w_o = nn.Linear(dim, dim)

    def forward(self, query, x):
        b, t, d = x.shape
        h = self.num_heads
        q = self.w_q(query).view(b, t, h, d // h).transpose(1, 2)
        k = self.w_k(x).view(b, t, h, d // h).transpose(1, 2)
        v = self.w_v(x).view(b, t, h, d // h).transpose(1, 2)
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).triu()
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=causal, dropout_p=self.dropout if self.training else 0.0
        )
        return self.w_o(out.transpose(1, 2).reshape(b, t, d))


class SASRec(nn.Module):
    """Self-attentive sequential recommendation (Kang & McAuley, 2018). Item id 0 is padding (on the left)."""

    def __init__(self, num_items=100, dim=32, max_len=50, num_blocks=2, num_heads=2, dropout=0.2):
        super().__init__()
        self.dim = dim
        self.item_emb = nn.Embedding(num_items + 1, dim, padding_idx=0)
        self.pos_emb = nn.Embedding(max_len, dim)
        self.drop = nn.Dropout(dropout)
        self.attn_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_blocks))
        self.attns = nn.ModuleList(CausalItemAttention(dim, num_heads, dropout) for _ in range(num_blocks))
        self.ffn_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(num_blocks))
        self.ffns = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim, dim))
            for _ in range(num_blocks)
        )
        self.last_norm = nn.LayerNorm(dim)

    def encode(self, seqs):
        keep = (seqs != 0).unsqueeze(-1)
        x = self.item_emb(seqs) * self.dim ** 0.5
        x = x + self.pos_emb(torch.arange(seqs.size(1), device=seqs.device))
        x = self.drop(x) * keep
        for n1, attn, n2, ffn in zip(self.attn_norms, self.attns, self.ffn_norms, self.ffns):
            x = x + attn(n1(x), x)
            x = x + ffn(n2(x))
            x = x * keep
        return self.last_norm(x)

    def forward(self, seqs, candidates):
        """seqs: [B, T] item ids, candidates: [B, T, N] ids to score for the next step."""
        feats = self.encode(seqs)
        return torch.einsum("btd,btnd->btn", feats, self.item_emb(candidates))
