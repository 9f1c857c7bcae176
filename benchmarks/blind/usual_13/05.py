import torch
import torch.nn as nn


class AdditiveAttention(nn.Module):
    """Bahdanau-style attention for a seq2seq decoder.

    score(s, h) = v^T tanh(W_s s + W_h h)
    """

    def __init__(self, dec_dim=64, enc_dim=64, attn_dim=32):
        super().__init__()
        self.W_s = nn.Linear(dec_dim, attn_dim, bias=False)
        self.W_h = nn.Linear(enc_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, query, keys, lengths=None):
        """
        query:   (B, dec_dim) current decoder state
        keys:    (B, T, enc_dim) encoder outputs
        lengths: (B,) number of valid encoder steps
        returns  context (B, enc_dim), weights (B, T)
        """
        energy = torch.tanh(self.W_s(query).unsqueeze(1) + self.W_h(keys))
        scores = self.v(energy)
        if lengths is not None:
            steps = torch.arange(keys.size(1), device=keys.device)
            outside = steps[None, :] >= lengths[:, None]
            scores = scores.masked_fill(outside.unsqueeze(-1), float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        weights = torch.nan_to_num(weights)
        context = (weights * keys).sum(dim=1)
        return context, weights.squeeze(-1)
