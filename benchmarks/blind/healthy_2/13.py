"""Small Conformer-style acoustic model with a CTC head."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def length_mask(lengths, max_len):
    """(B, max_len), True on real frames."""
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]


class Subsampling(nn.Module):
    """Two stride-2 convolutions; the time axis shrinks by four."""

    def __init__(self, n_mels, channels, dim):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        freq = (n_mels + 1) // 2
        freq = (freq + 1) // 2
        self.out = nn.Linear(channels * freq, dim)

    @staticmethod
    def _shrink(lengths):
        return torch.div(lengths + 1, 2, rounding_mode="floor")

    def forward(self, x, lengths):
        x = x * length_mask(lengths, x.size(1)).unsqueeze(-1)
        x = F.relu(self.conv1(x.unsqueeze(1)))
        lengths = self._shrink(lengths)
        # the bias made padded frames non-zero; clear them before they reach real ones
        x = x * length_mask(lengths, x.size(2))[:, None, :, None]
        x = F.relu(self.conv2(x))
        lengths = self._shrink(lengths)
        x = x.permute(0, 2, 1, 3).flatten(2)
        return self.out(x), lengths


class ConvModule(nn.Module):
    def __init__(self, dim, kernel_size, dropout):
        super().__init__()
        assert kernel_size % 2 == 1
        self.norm = nn.LayerNorm(dim)
        self.pointwise1 = nn.Linear(dim, 2 * dim)
        self.depthwise = nn.Conv1d(dim, dim, kernel_size, padding=kernel_size // 2, groups=dim)
        self.mid_norm = nn.LayerNorm(dim)
        self.pointwise2 = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        y = F.glu(self.pointwise1(self.norm(x)), dim=-1)
        y = y.masked_fill(~mask.unsqueeze(-1), 0.0)
        y = self.depthwise(y.transpose(1, 2)).transpose(1, 2)
        return self.dropout(self.pointwise2(F.silu(self.mid_norm(y))))


class FeedForward(nn.Sequential):
    def __init__(self, dim, dropout):
        super().__init__(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Dropout(dropout),
                         nn.Linear(4 * dim, dim), nn.Dropout(dropout))


class ConformerBlock(nn.Module):
    def __init__(self, dim, heads, kernel_size, dropout):
        super().__init__()
        self.ff1 = FeedForward(dim, dropout)
        self.attn_norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.conv = ConvModule(dim, kernel_size, dropout)
        self.ff2 = FeedForward(dim, dropout)
        self.final_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = x + 0.5 * self.ff1(x)
        y = self.attn_norm(x)
        y, _ = self.attn(y, y, y, key_padding_mask=~mask, need_weights=False)
        x = x + self.dropout(y)
        x = x + self.conv(x, mask)
        x = x + 0.5 * self.ff2(x)
        return self.final_norm(x)


class ConformerCTC(nn.Module):
    """features (B, T, n_mels), lengths (B,) >= 1  ->  log-probs (B, T', vocab), lengths (B,)."""

    def __init__(self, n_mels=80, vocab_size=32, dim=144, heads=4, num_layers=2,
                 kernel_size=15, dropout=0.1):
        super().__init__()
        self.dim = dim
        self.subsample = Subsampling(n_mels, 32, dim)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(ConformerBlock(dim, heads, kernel_size, dropout) for _ in range(num_layers))
        self.ctc = nn.Linear(dim, vocab_size)

    def _positions(self, n, device):
        pos = torch.arange(n, device=device, dtype=torch.float32).unsqueeze(1)
        freq = torch.exp(torch.arange(0, self.dim, 2, device=device) * (-math.log(10000.0) / self.dim))
        return torch.stack([torch.sin(pos * freq), torch.cos(pos * freq)], dim=-1).flatten(1)

    def forward(self, features, lengths):
        x, lengths = self.subsample(features, lengths)
        mask = length_mask(lengths, x.size(1))
        x = self.dropout(x * math.sqrt(self.dim) + self._positions(x.size(1), x.device).to(x.dtype))
        for block in self.blocks:
            x = block(x, mask)
        return self.ctc(x).log_softmax(dim=-1), lengths
