import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    """Additive attention over the outputs of a GRU encoder.

    Shapes
        hidden:          (1, batch, hidden)         last decoder state
        encoder_outputs: (src_len, batch, hidden)   as returned by nn.GRU
        src_mask:        (batch, src_len)           1 for words, 0 for padding
    Returns
        context (batch, hidden) and weights (batch, src_len)
    """

    def __init__(self, hidden_size=64, attn_size=64):
        super().__init__()
        self.W_h = nn.Linear(hidden_size, attn_size, bias=False)
        self.W_s = nn.Linear(hidden_size, attn_size)
        self.v = nn.Linear(attn_size, 1, bias=False)

    def forward(self, hidden, encoder_outputs, src_mask=None):
        src_len, batch, hidden_size = encoder_outputs.shape

        memory = encoder_outputs.contiguous().view(batch, src_len, hidden_size)
        state = hidden[-1].unsqueeze(1).expand(-1, src_len, -1)

        energy = torch.tanh(self.W_h(memory) + self.W_s(state))
        scores = self.v(energy).squeeze(-1)
        if src_mask is not None:
            scores = scores.masked_fill(src_mask == 0, -1e10)

        weights = F.softmax(scores, dim=1)
        context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
        return context, weights
