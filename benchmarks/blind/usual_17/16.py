import torch
import torch.nn as nn


class StrictlyCausalAttention(nn.Module):
    """Attention over the strict past (j < i), for autoregressive density models such as PixelSNAIL.

    Position i must not see its own input, because the input at i is what is predicted there.
    Position 0 has no past at all and gets a zero context vector.
    """

    def __init__(self, in_channels=32, key_channels=16, value_channels=32, num_heads=2):
        super().__init__()
        self.num_heads = num_heads
        self.dk = key_channels // num_heads
        self.dv = value_channels // num_heads
        self.query = nn.Linear(in_channels, key_channels)
        self.key = nn.Linear(in_channels, key_channels)
        self.value = nn.Linear(in_channels, value_channels)

    def forward(self, query_feats, past_feats):
        """
        query_feats: (B, N, C) features already shifted, not depending on input i
        past_feats:  (B, N, C) features that may depend on input i
        """
        B, N, _ = query_feats.shape
        q = self.query(query_feats).view(B, N, self.num_heads, self.dk).transpose(1, 2)
        k = self.key(past_feats).view(B, N, self.num_heads, self.dk).transpose(1, 2)
        v = self.value(past_feats).view(B, N, self.num_heads, self.dv).transpose(1, 2)

        logits = q @ k.transpose(2, 3) * self.dk ** -0.5
        past = torch.ones(N, N, device=q.device, dtype=torch.bool).tril(diagonal=-1)
        logits = logits.masked_fill(~past, -1e10)
        probs = logits.softmax(dim=-1)
        probs = probs * past

        ctx = probs @ v
        return ctx.transpose(1, 2).reshape(B, N, -1)
