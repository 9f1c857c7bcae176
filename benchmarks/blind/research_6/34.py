import torch
from torch import nn


class TSTEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.to_out = nn.Sequential(nn.Linear(d_model, d_model), nn.Dropout(dropout))
        self.norm_attn = nn.LayerNorm(d_model)
        self.norm_ffn = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model), nn.Dropout(dropout)
        )

    def forward(self, src):
        bs, n, d = src.shape
        q = self.W_Q(src).view(bs, n, self.n_heads, self.d_k).transpose(1, 2)
        k = self.W_K(src).view(bs, n, self.n_heads, self.d_k).permute(0, 2, 3, 1)
        v = self.W_V(src).view(bs, n, self.n_heads, self.d_k).transpose(1, 2)

        attn = torch.softmax(torch.matmul(q, k) * self.d_k ** -0.5, dim=-1)
        output = torch.matmul(attn, v)
        output = output.contiguous().view(bs, n, self.n_heads * self.d_k)

        src = self.norm_attn(src + self.to_out(output))
        return self.norm_ffn(src + self.ff(src))


class PatchTST(nn.Module):
    """Channel-independent forecaster on patches. x: [batch, seq_len, n_vars] -> [batch, pred_len, n_vars]"""

    def __init__(
        self, seq_len=96, pred_len=24, patch_len=16, stride=8, dim=64, num_heads=4, depth=2, d_ff=128, dropout=0.1
    ):
        super().__init__()
        self.patch_len = patch_len
        self.stride = stride
        n_patches = (seq_len - patch_len) // stride + 2
        self.pad = nn.ReplicationPad1d((0, stride))
        self.W_P = nn.Linear(patch_len, dim)
        self.W_pos = nn.Parameter(torch.empty(n_patches, dim).uniform_(-0.02, 0.02))
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList([TSTEncoderLayer(dim, num_heads, d_ff, dropout) for _ in range(depth)])
        self.head = nn.Linear(n_patches * dim, pred_len)

    def forward(self, x):
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = (x - mean) / std

        B, L, C = x.shape
        z = self.pad(x.transpose(1, 2)).unfold(-1, self.patch_len, self.stride)
        z = self.W_P(z.reshape(B * C, -1, self.patch_len))
        z = self.drop(z + self.W_pos)
        for layer in self.layers:
            z = layer(z)
        y = self.head(z.flatten(1)).view(B, C, -1).transpose(1, 2)
        return y * std + mean
