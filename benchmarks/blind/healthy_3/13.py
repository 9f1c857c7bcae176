import torch
import torch.nn as nn
import torch.nn.functional as F


class RevIN(nn.Module):
    """Reversible instance normalisation over the time axis."""

    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def normalize(self, x):
        mean = x.mean(dim=1, keepdim=True).detach()
        std = torch.sqrt(x.var(dim=1, keepdim=True, unbiased=False) + self.eps).detach()
        return (x - mean) / std * self.weight + self.bias, (mean, std)

    def denormalize(self, y, stats):
        mean, std = stats
        # the weight starts at one and could only come near zero during training
        weight = torch.where(self.weight.abs() < self.eps, torch.full_like(self.weight, self.eps), self.weight)
        return (y - self.bias) / weight * std + mean


class EncoderLayer(nn.Module):
    """Post-norm layer; the raw scores are handed on to the next layer (RealFormer residual attention)."""

    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, prev_scores=None):
        B, N, D = x.shape
        qkv = self.to_qkv(x).reshape(B, N, 3, self.heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) * self.head_dim ** -0.5
        if prev_scores is not None:
            scores = scores + prev_scores
        out = (self.drop(scores.softmax(dim=-1)) @ v).transpose(1, 2).reshape(B, N, D)
        x = self.norm1(x + self.drop(self.to_out(out)))
        x = self.norm2(x + self.drop(self.ff(x)))
        return x, scores


class PatchTST(nn.Module):
    """Channel independent patch transformer for forecasting.

    The end of the series is repeated for one stride, so that the last values are in a full patch.

    Input (batch, context, channels) -> output (batch, horizon, channels).
    """

    def __init__(self, channels=7, context=96, horizon=24, patch=16, stride=8, dim=64, heads=4, layers=2,
                 dropout=0.1):
        super().__init__()
        assert context >= patch
        self.context, self.horizon, self.patch, self.stride = context, horizon, patch, stride
        self.n_patches = (context + stride - patch) // stride + 1
        self.revin = RevIN(channels)
        self.embed = nn.Linear(patch, dim)
        self.pos = nn.Parameter(torch.randn(self.n_patches, dim) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads, dropout) for _ in range(layers)])
        self.head = nn.Linear(self.n_patches * dim, horizon)

    def forward(self, series):
        B, L, C = series.shape
        if L != self.context:
            raise ValueError(f"expected {self.context} time steps, got {L}")
        x, stats = self.revin.normalize(series)
        x = x.transpose(1, 2)                                       # (B, C, L)
        x = F.pad(x, (0, self.stride), mode="replicate")
        x = x.unfold(-1, self.patch, self.stride)                   # (B, C, n_patches, patch)
        x = x.reshape(B * C, self.n_patches, self.patch)            # every channel is its own sequence
        x = self.drop(self.embed(x) + self.pos)
        scores = None
        for layer in self.layers:
            x, scores = layer(x, scores)
        y = self.head(x.flatten(1)).view(B, C, self.horizon).transpose(1, 2)
        return self.revin.denormalize(y, stats)
