import torch
import torch.nn as nn


class SensorClassifier(nn.Module):
    """Classifier for fixed-length sensor windows: linear embedding + self-attention + mean pooling.

    x: (batch, steps, channels), all windows have the same number of steps.
    """

    def __init__(self, in_channels=6, embed_dim=64, num_heads=4, num_classes=5, max_len=128, dropout=0.1):
        super().__init__()
        self.embed = nn.Linear(in_channels, embed_dim)
        self.pos = nn.Parameter(torch.randn(1, max_len, embed_dim) * 0.02)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout)
        self.norm1 = nn.LayerNorm(embed_dim)
        self.norm2 = nn.LayerNorm(embed_dim)
        self.ff = nn.Sequential(
            nn.Linear(embed_dim, 4 * embed_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4 * embed_dim, embed_dim),
        )
        self.head = nn.Linear(embed_dim, num_classes)

    def forward(self, x):
        x = self.embed(x) + self.pos[:, : x.size(1)]
        attn_out, _ = self.attn(x, x, x, need_weights=False)
        x = self.norm1(x + attn_out)
        x = self.norm2(x + self.ff(x))
        return self.head(x.mean(dim=1))
