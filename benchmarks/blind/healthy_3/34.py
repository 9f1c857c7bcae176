"""Non-autoregressive text to mel model in the manner of FastSpeech."""
import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


def sequence_mask(lengths: torch.Tensor, max_len: int) -> torch.Tensor:
    return torch.arange(max_len, device=lengths.device)[None, :] < lengths[:, None]


class FFTBlock(nn.Module):
    """Self-attention and a convolutional feed-forward, post-norm. Padding is zeroed after both."""

    def __init__(self, dim, heads, hidden, kernel, dropout):
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.conv1 = nn.Conv1d(dim, hidden, kernel, padding=kernel // 2)
        self.conv2 = nn.Conv1d(hidden, dim, 1)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def attend(self, x, mask):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.heads, self.head_dim).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        score = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
        score = score.masked_fill(~mask[:, None, None, :], torch.finfo(score.dtype).min)
        y = self.drop(score.softmax(dim=-1)) @ v
        return self.out(y.transpose(1, 2).reshape(B, T, D))

    def forward(self, x, mask):
        m = mask.unsqueeze(-1).to(x.dtype)
        x = self.norm1(x + self.drop(self.attend(x, mask))) * m
        y = self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + self.drop(y)) * m


class DurationPredictor(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(dim, dim, 3, padding=1), nn.Conv1d(dim, dim, 3, padding=1)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)
        self.out = nn.Linear(dim, 1)

    def forward(self, x, mask):
        m = mask.unsqueeze(-1).to(x.dtype)
        x = self.drop(self.norm1(F.relu(self.conv1(x.transpose(1, 2)).transpose(1, 2)))) * m
        x = self.drop(self.norm2(F.relu(self.conv2(x.transpose(1, 2)).transpose(1, 2)))) * m
        return self.out(x).squeeze(-1) * m.squeeze(-1)


class FastSpeech(nn.Module):
    """
    Inputs:
        phonemes: (B, T) ids, right padded; lengths: (B,) at least 1.
        durations: (B, T) frames per phoneme for training (zero on padding); predicted when not given.

    Returns mel (B, F, n_mels), zero after the end, the log(1 + duration) predictions (B, T) and the
    number of frames (B,).
    """

    def __init__(self, n_phonemes=80, n_mels=80, dim=128, heads=2, layers=2, hidden=256, kernel=9, dropout=0.1):
        super().__init__()
        assert kernel % 2 == 1 and dim % heads == 0 and dim % 2 == 0
        self.embed = nn.Embedding(n_phonemes, dim)
        self.encoder = nn.ModuleList([FFTBlock(dim, heads, hidden, kernel, dropout) for _ in range(layers)])
        self.duration = DurationPredictor(dim, dropout)
        self.decoder = nn.ModuleList([FFTBlock(dim, heads, hidden, kernel, dropout) for _ in range(layers)])
        self.to_mel = nn.Linear(dim, n_mels)
        freq = torch.exp(torch.arange(0, dim, 2).float() * (-math.log(10000.0) / dim))
        self.register_buffer("freq", freq, persistent=False)

    def add_position(self, x, mask):
        angle = torch.arange(x.size(1), device=x.device)[:, None].float() * self.freq.float()
        pe = torch.cat([angle.sin(), angle.cos()], dim=-1).to(x.dtype)
        return (x + pe) * mask.unsqueeze(-1).to(x.dtype)

    @staticmethod
    def length_regulate(x, durations):
        """Repeats phoneme t durations[:, t] times. (B, T, D) -> (B, F, D) and the frame counts."""
        ends = durations.cumsum(dim=1)
        frames = ends[:, -1]
        pos = torch.arange(int(frames.max()), device=x.device).expand(x.size(0), -1).contiguous()
        # the phoneme of a frame is the first one which ends after it
        index = torch.searchsorted(ends.contiguous(), pos, right=True).clamp(max=x.size(1) - 1)
        return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.size(-1))), frames

    def forward(self, phonemes, lengths, durations: Optional[torch.Tensor] = None):
        mask = sequence_mask(lengths, phonemes.size(1))
        x = self.add_position(self.embed(phonemes), mask)
        for block in self.encoder:
            x = block(x, mask)

        log_dur = self.duration(x.detach(), mask)  # durations do not train the encoder
        if durations is None:
            durations = log_dur.expm1().round().clamp(min=1).long()
        durations = durations.masked_fill(~mask, 0)

        y, frames = self.length_regulate(x, durations)
        frame_mask = sequence_mask(frames, y.size(1))
        y = self.add_position(y, frame_mask)
        for block in self.decoder:
            y = block(y, frame_mask)
        mel = self.to_mel(y) * frame_mask.unsqueeze(-1).to(y.dtype)
        return mel, log_dur, frames
