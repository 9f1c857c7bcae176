import torch
import torch.nn as nn
import torch.nn.functional as F


class AdditiveAttention(nn.Module):
    """Bahdanau attention for a recurrent decoder.

    score(s, h_j) = v^T tanh(W s + U h_j)
    """

    def __init__(self, enc_dim=256, dec_dim=256, attn_dim=128):
        super().__init__()
        self.W = nn.Linear(dec_dim, attn_dim, bias=False)
        self.U = nn.Linear(enc_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs, src_lengths=None):
        """
        :param hidden: decoder state, (batch, dec_dim)
        :param encoder_outputs: (batch, src_len, enc_dim)
        :param src_lengths: (batch,) number of real source tokens
        :return: context (batch, enc_dim), weights (batch, src_len)
        """
        query = torch.tanh(self.W(hidden)).unsqueeze(1)
        energy = self.v(query + self.U(encoder_outputs)).squeeze(-1)

        if src_lengths is not None:
            steps = torch.arange(encoder_outputs.size(1), device=encoder_outputs.device)
            pad = steps.unsqueeze(0) >= src_lengths.unsqueeze(1)
            energy = energy.masked_fill(pad, float("-inf"))

        weights = F.softmax(energy, dim=1)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)
        return context, weights
