import torch
import torch.nn as nn


class TemporalEncoderBlock(nn.Module):
    """Lets the frames of a clip exchange information.

    Input and output: (batch, num_frames, channels), the per-frame features of the CNN backbone.
    """

    def __init__(self, channels=64, num_heads=4, mlp_ratio=4, dropout=0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.attn = nn.MultiheadAttention(channels, num_heads, dropout=dropout)
        self.norm2 = nn.LayerNorm(channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, channels * mlp_ratio),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(channels * mlp_ratio, channels),
            nn.Dropout(dropout),
        )

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        y = self.norm1(frames)
        y, _ = self.attn(y, y, y, need_weights=False)
        frames = frames + y
        frames = frames + self.mlp(self.norm2(frames))
        return frames
