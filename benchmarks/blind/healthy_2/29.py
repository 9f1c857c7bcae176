"""PatchTST: a time series is worth 64 words (Nie et al., 2023)."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class RevIN(nn.Module):
    """Reversible instance normalisation, statistics are taken over the time axis."""

    def __init__(self, num_features, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def normalise(self, x):
        mean = x.mean(dim=1, keepdim=True).detach()
        std = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + self.eps).detach()
        return (x - mean) / std * self.weight + self.bias, (mean, std)

    def denormalise(self, x, stats):
        mean, std = stats
        return (x - self.bias) / (self.weight + self.eps ** 2) * std + mean


class TSTEncoderLayer(nn.Module):
    """Post-norm layer with residual attention: raw scores are handed to the next layer."""

    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.scale = (d_model // n_heads) ** -0.5
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.to_out = nn.Linear(d_model, d_model)
        self.norm_attn = nn.LayerNorm(d_model)
        self.norm_ffn = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, prev):
        b, n, d = x.shape
        q = self.W_Q(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        k = self.W_K(x).view(b, n, self.n_heads, -1).permute(0, 2, 3, 1)
        v = self.W_V(x).view(b, n, self.n_heads, -1).transpose(1, 2)
        scores = (q @ k) * self.scale
        if prev is not None:
            scores = scores + prev
        weights = self.dropout(F.softmax(scores, dim=-1))
        y = (weights @ v).transpose(1, 2).contiguous().view(b, n, d)
        x = self.norm_attn(x + self.dropout(self.to_out(y)))
        x = self.norm_ffn(x + self.dropout(self.ff(x)))
        return x, scores


class PatchTST(nn.Module):
    """Channel-independent forecaster: (B, context_len, C) -> (B, horizon, C).

    All channels share the weights; the end of the series is replicated by one stride so that the
    newest values are covered by a full patch.
    """

    def __init__(self, num_channels=7, context_len=96, horizon=24, patch_len=16, stride=8,
                 d_model=64, n_heads=4, n_layers=2, d_ff=128, dropout=0.1):
        super().__init__()
        assert context_len + stride >= patch_len
        self.num_channels = num_channels
        self.context_len = context_len
        self.patch_len = patch_len
        self.stride = stride
        num_patches = (context_len + stride - patch_len) // stride + 1
        self.revin = RevIN(num_channels)
        self.embed = nn.Linear(patch_len, d_model)
        self.pos = nn.Parameter(torch.empty(1, num_patches, d_model).uniform_(-0.02, 0.02))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(TSTEncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers))
        self.head = nn.Linear(num_patches * d_model, horizon)

    def forward(self, x):
        b, t, c = x.shape
        if t != self.context_len or c != self.num_channels:
            raise ValueError(f"expected (B, {self.context_len}, {self.num_channels}), got {tuple(x.shape)}")
        x, stats = self.revin.normalise(x)
        x = x.transpose(1, 2)
        x = F.pad(x, (0, self.stride), mode="replicate")
        x = x.unfold(-1, self.patch_len, self.stride)  # (B, C, patches, patch_len)
        x = x.reshape(b * c, x.size(2), self.patch_len)
        x = self.dropout(self.embed(x) + self.pos)
        scores = None
        for layer in self.layers:
            x, scores = layer(x, scores)
        y = self.head(x.flatten(1)).view(b, c, -1).transpose(1, 2)
        return self.revin.denormalise(y, stats)
