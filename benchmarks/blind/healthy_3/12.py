"""Small conformer acoustic model with a CTC head."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class ConvSubsampling(nn.Module):
    """Two unpadded stride-2 convolutions. The number of valid frames follows exactly."""

    def __init__(self, n_mels, dim, channels=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, channels, 3, stride=2), nn.ReLU(), nn.Conv2d(channels, channels, 3, stride=2), nn.ReLU()
        )
        freq = ((n_mels - 1) // 2 - 1) // 2
        self.out = nn.Linear(channels * freq, dim)

    def forward(self, feats, lengths):
        x = self.conv(feats.unsqueeze(1))
        x = x.permute(0, 2, 1, 3).flatten(2)
        lengths = ((lengths - 1) // 2 - 1) // 2
        return self.out(x), lengths.clamp(min=0)


class ConvModule(nn.Module):
    def __init__(self, dim, kernel):
        super().__init__()
        assert kernel % 2 == 1
        self.norm = nn.LayerNorm(dim)
        self.pointwise1 = nn.Linear(dim, 2 * dim)
        self.depthwise = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.mid_norm = nn.LayerNorm(dim)  # instead of batch norm: no statistics over padding
        self.pointwise2 = nn.Linear(dim, dim)

    def forward(self, x, valid):
        x = F.glu(self.pointwise1(self.norm(x)), dim=-1)
        x = x.masked_fill(~valid.unsqueeze(-1), 0.0)  # padding looks like the zeros at the border
        x = self.depthwise(x.transpose(1, 2)).transpose(1, 2)
        return self.pointwise2(F.silu(self.mid_norm(x)))


class FeedForward(nn.Sequential):
    def __init__(self, dim, dropout):
        super().__init__(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim)
        )


class ConformerBlock(nn.Module):
    def __init__(self, dim, heads, kernel, dropout):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(dim, dropout), FeedForward(dim, dropout)
        self.attn_norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.conv = ConvModule(dim, kernel)
        self.final_norm = nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, valid):
        x = x + 0.5 * self.drop(self.ff1(x))
        y = self.attn_norm(x)
        y, _ = self.attn(y, y, y, key_padding_mask=~valid, need_weights=False)
        x = x + self.drop(y)
        x = x + self.drop(self.conv(x, valid))
        x = x + 0.5 * self.drop(self.ff2(x))
        return self.final_norm(x)


class ConformerCTC(nn.Module):
    """
    Inputs: log-mel features (batch, frames, n_mels) and their lengths (batch,); at least 7 frames each.
    Output: log probabilities (batch, frames', vocab) with the blank at 0, and the output lengths.
    """

    def __init__(self, n_mels=80, vocab_size=40, dim=144, heads=4, layers=3, kernel=15, max_frames=2000,
                 dropout=0.1):
        super().__init__()
        self.subsample = ConvSubsampling(n_mels, dim)
        pos = torch.arange(max_frames, dtype=torch.float32)[:, None]
        freq = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
        self.register_buffer("pe", torch.cat([(pos * freq).sin(), (pos * freq).cos()], dim=-1), persistent=False)
        self.scale = math.sqrt(dim)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([ConformerBlock(dim, heads, kernel, dropout) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, feats, lengths):
        x, lengths = self.subsample(feats, lengths)
        T = x.size(1)
        if T > self.pe.size(0):
            raise ValueError("utterance too long")
        if int(lengths.min()) < 1:
            raise ValueError("every utterance needs at least 7 frames")
        valid = torch.arange(T, device=x.device)[None, :] < lengths[:, None]
        x = self.drop(x * self.scale + self.pe[:T])
        for block in self.blocks:
            x = block(x, valid)
        return self.head(x).log_softmax(dim=-1), lengths

    def loss(self, feats, lengths, targets, target_lengths):
        """targets: (batch, max target length) with ids >= 1."""
        log_probs, out_lengths = self(feats, lengths)
        return F.ctc_loss(log_probs.transpose(0, 1), targets, out_lengths, target_lengths, blank=0,
                          zero_infinity=True)

    @torch.no_grad()
    def greedy(self, feats, lengths):
        log_probs, out_lengths = self(feats, lengths)
        result = []
        for path, n in zip(log_probs.argmax(-1), out_lengths.tolist()):
            ids = torch.unique_consecutive(path[:n])
            result.append(ids[ids != 0].tolist())
        return result
