"""Additive (Bahdanau) attention for the translation chapter."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class AdditiveAttention(nn.Module):
    """score(s, h) = v^T tanh(W s + U h)

    decoder_state:   (batch, dec_dim)
    encoder_outputs: (batch, src_len, enc_dim)
    src_lengths:     (batch,) number of real source tokens, at least one
    Returns the context (batch, enc_dim) and the weights (batch, src_len).
    """

    def __init__(self, enc_dim=64, dec_dim=48, attn_dim=32):
        super().__init__()
        self.W = nn.Linear(dec_dim, attn_dim, bias=False)
        self.U = nn.Linear(enc_dim, attn_dim, bias=True)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, decoder_state, encoder_outputs, src_lengths=None):
        energy = self.v(torch.tanh(self.W(decoder_state).unsqueeze(1) + self.U(encoder_outputs)))
        energy = energy.squeeze(-1)
        if src_lengths is not None:
            pos = torch.arange(encoder_outputs.size(1), device=energy.device)
            energy = energy.masked_fill(pos[None, :] >= src_lengths[:, None], float("-inf"))
        alpha = F.softmax(energy, dim=-1)
        context = torch.bmm(alpha.unsqueeze(1), encoder_outputs).squeeze(1)
        return context, alpha
