import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderDecoderAttention(nn.Module):
    """Attention of the decoder states over the encoder outputs.

    Heads are folded into the batch dimension so that ``torch.bmm`` can be used throughout.
    """

    def __init__(self, hidden_dim=256, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_dim // num_heads
        self.q_layer = nn.Linear(hidden_dim, hidden_dim)
        self.k_layer = nn.Linear(hidden_dim, hidden_dim)
        self.v_layer = nn.Linear(hidden_dim, hidden_dim)
        self.output_layer = nn.Linear(hidden_dim, hidden_dim)
        self.dropout = nn.Dropout(dropout)

    def _fold(self, x):
        b, n, _ = x.shape
        x = x.view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        return x.reshape(b * self.num_heads, n, self.head_dim)

    def forward(self, decoder_states, encoder_outputs, src_mask=None):
        """
        decoder_states: (B, T, H)
        encoder_outputs: (B, S, H)
        src_mask: (B, S), 1 for real source tokens
        """
        b, t, h = decoder_states.shape
        q = self._fold(self.q_layer(decoder_states))
        k = self._fold(self.k_layer(encoder_outputs))
        v = self._fold(self.v_layer(encoder_outputs))

        scores = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(self.head_dim)
        if src_mask is not None:
            blocked = (src_mask == 0).repeat_interleave(self.num_heads, dim=0).unsqueeze(1)
            scores = scores.masked_fill(blocked, -1e9)

        weights = self.dropout(F.softmax(scores, dim=1))
        context = torch.bmm(weights, v)
        context = context.view(b, self.num_heads, t, self.head_dim).transpose(1, 2).reshape(b, t, h)
        return self.output_layer(context)
