import torch
import torch.nn as nn


class PatchEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, n_heads, dropout=dropout)
        self.norm_attn = nn.LayerNorm(d_model)
        self.norm_ffn = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(self, src):
        src2, _ = self.self_attn(src, src, src, need_weights=False)
        src = self.norm_attn(src + self.dropout(src2))
        return self.norm_ffn(src + self.dropout(self.ff(src)))


class PatchTST(nn.Module):
    """Channel-independent patch transformer for long-term forecasting.

    ``x`` is ``[B, seq_len, channels]`` and the forecast ``[B, pred_len, channels]``. Each channel is
    normalised, cut into overlapping patches and forecast on its own with shared weights.
    """

    def __init__(self, seq_len=96, pred_len=24, patch_len=16, stride=8, d_model=64, n_heads=4, n_layers=2,
                 d_ff=128, dropout=0.1):
        super().__init__()
        self.patch_len = patch_len
        self.stride = stride
        self.pad = nn.ReplicationPad1d((0, stride))
        self.n_patches = (seq_len - patch_len) // stride + 2
        self.embed = nn.Linear(patch_len, d_model)
        self.pos = nn.Parameter(torch.randn(1, self.n_patches, d_model) * 0.02)
        self.layers = nn.ModuleList([PatchEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.head = nn.Linear(self.n_patches * d_model, pred_len)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        b, _, c = x.shape
        mean = x.mean(dim=1, keepdim=True).detach()
        std = (x.var(dim=1, keepdim=True, unbiased=False) + 1e-5).sqrt().detach()
        x = ((x - mean) / std).permute(0, 2, 1)

        x = self.pad(x).unfold(-1, self.patch_len, self.stride)
        x = x.reshape(b * c, x.size(2), self.patch_len)
        x = self.dropout(self.embed(x) + self.pos)
        for layer in self.layers:
            x = layer(x)

        y = self.head(x.flatten(1)).view(b, c, -1).permute(0, 2, 1)
        return y * std + mean
