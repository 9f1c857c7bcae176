import torch
import torch.nn as nn
import torch.nn.functional as F


class VariateAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.scale = (d_model // n_heads) ** -0.5
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        a = torch.softmax(q @ k.transpose(-2, -1) * self.scale, dim=-1)
        a = F.dropout(a, self.dropout)
        return self.out((a @ v).transpose(1, 2).reshape(b, n, d))


class iTransformer(nn.Module):
    """Inverted Transformer: each variate of the window is one token.

    x: [B, seq_len, n_vars] -> forecast [B, pred_len, n_vars]
    """

    def __init__(self, seq_len=48, pred_len=24, d_model=64, n_heads=4, n_layers=2, dropout=0.1):
        super().__init__()
        self.embed = nn.Linear(seq_len, d_model)
        self.embed_drop = nn.Dropout(dropout)
        self.attn = nn.ModuleList(VariateAttention(d_model, n_heads, dropout) for _ in range(n_layers))
        self.ffn = nn.ModuleList(
            nn.Sequential(nn.Linear(d_model, 2 * d_model), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * d_model, d_model))
            for _ in range(n_layers)
        )
        self.norm1 = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(n_layers))
        self.norm2 = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(n_layers))
        self.final_norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, pred_len)

    def forward(self, x):
        mean = x.mean(1, keepdim=True).detach()
        x = x - mean
        std = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = x / std

        h = self.embed_drop(self.embed(x.transpose(1, 2)))
        for attn, ffn, n1, n2 in zip(self.attn, self.ffn, self.norm1, self.norm2):
            h = n1(h + attn(h))
            h = n2(h + ffn(h))
        y = self.head(self.final_norm(h)).transpose(1, 2)
        return y * std + mean
