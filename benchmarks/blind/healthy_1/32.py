import torch
import torch.nn as nn
import torch.nn.functional as F


def length_to_mask(length, max_len, dtype, device):
    return (torch.arange(max_len, device=device)[None, :] < length[:, None]).to(dtype)


class TDNNBlock(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, 1)
        self.activation = nn.ReLU()
        self.norm = nn.BatchNorm1d(out_channels)

    def forward(self, x):
        return self.norm(self.activation(self.conv(x)))


class AttentiveStatisticsPooling(nn.Module):
    """Attentive statistics pooling of ECAPA-TDNN: weighted mean and standard deviation of each channel.

    Every channel has its own attention over time.

    Arguments
    ---------
    channels: int
        Number of input channels.
    attention_channels: int
        Width of the bottleneck.
    global_context: bool
        Show the unweighted mean and std of the utterance to the attention.
    """

    def __init__(self, channels=64, attention_channels=32, global_context=True, eps=1e-12):
        super().__init__()
        self.eps = eps
        self.global_context = global_context
        self.tdnn = TDNNBlock(channels * 3 if global_context else channels, attention_channels)
        self.tanh = nn.Tanh()
        self.conv = nn.Conv1d(attention_channels, channels, 1)

    def _statistics(self, x, weights):
        mean = (weights * x).sum(dim=2)
        std = torch.sqrt((weights * (x - mean.unsqueeze(2)).pow(2)).sum(dim=2).clamp(min=self.eps))
        return mean, std

    def forward(self, x, lengths=None):
        """
        x: (batch, channels, time); lengths: (batch,) relative lengths in (0, 1], all 1 if omitted.
        Returns (batch, 2 * channels, 1).
        """
        B, C, T = x.shape
        if lengths is None:
            lengths = torch.ones(B, device=x.device)
        # at least one frame, rounding must not leave an empty utterance
        frames = torch.round(lengths * T).clamp(min=1)
        mask = length_to_mask(frames, T, x.dtype, x.device).unsqueeze(1)

        if self.global_context:
            mean, std = self._statistics(x, mask / mask.sum(dim=2, keepdim=True))
            attn = torch.cat([x, mean.unsqueeze(2).expand(-1, -1, T), std.unsqueeze(2).expand(-1, -1, T)], dim=1)
        else:
            attn = x

        attn = self.conv(self.tanh(self.tdnn(attn)))
        attn = attn.masked_fill(mask == 0, float("-inf"))
        attn = F.softmax(attn, dim=2)
        mean, std = self._statistics(x, attn)
        return torch.cat((mean, std), dim=1).unsqueeze(2)
