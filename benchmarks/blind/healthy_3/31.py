"""Speaker embedding network with channel-dependent attentive statistics pooling."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class TDNNBlock(nn.Module):
    """Dilated convolution, layer norm over channels, residual; padding frames are kept at zero."""

    def __init__(self, channels, kernel, dilation):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=dilation * (kernel // 2))
        self.norm = nn.LayerNorm(channels)

    def forward(self, x, mask):
        y = self.conv(x)
        y = F.relu(self.norm(y.transpose(1, 2)).transpose(1, 2))
        return (x + y) * mask


class AttentiveStatsPooling(nn.Module):
    """Attention weights per frame AND channel; returns weighted mean and standard deviation.

    Each frame also sees the utterance statistics, so that the weights depend on the whole recording.
    """

    def __init__(self, channels, bottleneck, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.attention = nn.Sequential(
            nn.Conv1d(3 * channels, bottleneck, kernel_size=1),
            nn.Tanh(),
            nn.Conv1d(bottleneck, channels, kernel_size=1),
        )

    def _stats(self, x, w):
        """x, w: (B, C, T), w sums to one over T."""
        mean = (w * x).sum(dim=-1, keepdim=True)
        var = (w * (x - mean).square()).sum(dim=-1, keepdim=True)
        return mean, var.clamp(min=self.eps).sqrt()

    def forward(self, x, mask):
        """x: (B, C, T), mask: (B, 1, T) with ones for frames -> (B, 2 * C)"""
        uniform = (mask / mask.sum(dim=-1, keepdim=True)).expand_as(x)
        mean, std = self._stats(x, uniform)
        context = torch.cat([x, mean.expand_as(x), std.expand_as(x)], dim=1)
        score = self.attention(context).masked_fill(mask == 0, float("-inf"))
        mean, std = self._stats(x, score.softmax(dim=-1))
        return torch.cat([mean, std], dim=1).squeeze(-1)


class SpeakerNet(nn.Module):
    """
    Args:
        n_mels: features per frame.
        num_speakers: classes of the training set.
        margin, scale: additive margin softmax, used by ``loss`` only.

    ``forward(feats (B, T, n_mels), lengths (B,) >= 1)`` gives unit length embeddings (B, emb_dim).
    """

    def __init__(self, n_mels=40, num_speakers=200, channels=128, emb_dim=96, margin=0.2, scale=30.0):
        super().__init__()
        self.margin, self.scale = margin, scale
        self.inp = nn.Conv1d(n_mels, channels, 5, padding=2)
        self.blocks = nn.ModuleList([TDNNBlock(channels, 3, d) for d in (1, 2, 3)])
        self.mix = nn.Conv1d(3 * channels, channels, 1)
        self.pool = AttentiveStatsPooling(channels, bottleneck=64)
        self.norm = nn.LayerNorm(2 * channels)
        self.fc = nn.Linear(2 * channels, emb_dim)
        self.prototypes = nn.Parameter(torch.empty(num_speakers, emb_dim))
        nn.init.xavier_normal_(self.prototypes)

    def forward(self, feats, lengths):
        frames = torch.arange(feats.size(1), device=feats.device)
        mask = (frames[None, :] < lengths[:, None]).unsqueeze(1).to(feats.dtype)
        x = feats.transpose(1, 2).masked_fill(mask == 0, 0.0)
        # cepstral mean subtraction over the real frames
        x = (x - x.sum(dim=-1, keepdim=True) / mask.sum(dim=-1, keepdim=True)) * mask
        x = F.relu(self.inp(x)) * mask
        taps = []
        for block in self.blocks:
            x = block(x, mask)
            taps.append(x)
        x = F.relu(self.mix(torch.cat(taps, dim=1))) * mask
        return F.normalize(self.fc(self.norm(self.pool(x, mask))), dim=-1)

    def loss(self, feats, lengths, speakers):
        cosine = self(feats, lengths) @ F.normalize(self.prototypes, dim=-1).t()
        target = F.one_hot(speakers, cosine.size(1)).to(cosine.dtype)
        return F.cross_entropy(self.scale * (cosine - self.margin * target), speakers)
