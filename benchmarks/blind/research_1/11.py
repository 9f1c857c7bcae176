import torch
from torch import nn


class PatchEncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, n_heads, dropout=dropout)
        self.dropout_attn = nn.Dropout(dropout)
        self.norm_attn = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.dropout_ffn = nn.Dropout(dropout)
        self.norm_ffn = nn.LayerNorm(d_model)

    def forward(self, src):
        src2, _ = self.self_attn(src, src, src, need_weights=False)
        src = self.norm_attn(src + self.dropout_attn(src2))
        src = self.norm_ffn(src + self.dropout_ffn(self.ff(src)))
        return src


class PatchTST(nn.Module):
    """Channel-independent patch transformer for forecasting.

    Args:
        c_in: number of channels
        context_window: length of the history
        target_window: forecast horizon
    Input ``[bs, context_window, c_in]``, output ``[bs, target_window, c_in]``.
    """

    def __init__(self, c_in=7, context_window=96, target_window=24, patch_len=16, stride=8,
                 n_layers=2, d_model=64, n_heads=4, d_ff=128, dropout=0.1, eps=1e-5):
        super().__init__()
        self.patch_len = patch_len
        self.stride = stride
        self.eps = eps
        self.target_window = target_window
        patch_num = (context_window - patch_len) // stride + 2
        self.pad = nn.ReplicationPad1d((0, stride))

        self.W_P = nn.Linear(patch_len, d_model)
        self.W_pos = nn.Parameter(torch.empty(patch_num, d_model))
        nn.init.uniform_(self.W_pos, -0.02, 0.02)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(
            [PatchEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.head = nn.Sequential(nn.Flatten(-2), nn.Linear(d_model * patch_num, target_window))

    def forward(self, x):
        bs, _, n_vars = x.shape
        mean = x.mean(dim=1, keepdim=True)
        std = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + self.eps)
        z = (x - mean) / std

        z = self.pad(z.permute(0, 2, 1))
        z = z.unfold(dimension=-1, size=self.patch_len, step=self.stride)   # [bs, nvars, patch_num, patch_len]
        z = z.reshape(bs * n_vars, z.size(2), self.patch_len)

        z = self.dropout(self.W_P(z) + self.W_pos)
        for layer in self.encoder:
            z = layer(z)

        y = self.head(z).reshape(bs, n_vars, self.target_window).permute(0, 2, 1)
        return y * std + mean
