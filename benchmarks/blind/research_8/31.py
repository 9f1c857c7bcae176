import torch
import torch.nn as nn


class ResidualScoreAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.scale = (d_model // n_heads) ** -0.5
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.to_out = nn.Sequential(nn.Linear(d_model, d_model), nn.Dropout(dropout))
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, x, prev=None):
        b, n, d = x.shape
        q = self.W_Q(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        k = self.W_K(x).view(b, n, self.n_heads, -1).permute(0, 2, 3, 1)
        v = self.W_V(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        scores = torch.matmul(q, k) * self.scale
        if prev is not None:
            scores = scores + prev
        weights = torch.softmax(scores, dim=-1)
        out = torch.matmul(self.attn_dropout(weights), v)
        out = out.transpose(1, 2).contiguous().view(b, n, d)
        return self.to_out(out), weights


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = ResidualScoreAttention(d_model, n_heads, dropout)
        self.norm_attn = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.norm_ffn = nn.LayerNorm(d_model)

    def forward(self, x, prev=None):
        y, prev = self.self_attn(x, prev)
        x = self.norm_attn(x + y)
        x = self.norm_ffn(x + self.ff(x))
        return x, prev


class PatchTSTBackbone(nn.Module):
    """Channel-independent patch encoder with residual attention: every layer adds the attention scores
    of the layer before to its own (RealFormer).

    x: [B, n_vars, context] -> [B, n_vars, n_patches, d_model]
    """

    def __init__(self, context=96, patch_len=16, stride=8, d_model=64, n_heads=4, n_layers=3, d_ff=128, dropout=0.1):
        super().__init__()
        self.patch_len, self.stride = patch_len, stride
        n_patches = (context - patch_len) // stride + 1
        self.W_P = nn.Linear(patch_len, d_model)
        self.W_pos = nn.Parameter(torch.empty(n_patches, d_model).uniform_(-0.02, 0.02))
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers))

    def forward(self, x):
        b, c, _ = x.shape
        z = x.unfold(-1, self.patch_len, self.stride)
        n = z.size(2)
        z = self.drop(self.W_P(z).reshape(b * c, n, -1) + self.W_pos)
        prev = None
        for layer in self.layers:
            z, prev = layer(z, prev)
        return z.view(b, c, n, -1)
