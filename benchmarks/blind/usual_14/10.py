import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    """Additive attention for the GRU decoder.

    Inputs:
        decoder_hidden: (batch, dec_dim)
        encoder_outputs: (batch, src_len, enc_dim)
        src_lengths: (batch,) number of real source tokens, or None
    Returns the context vector (batch, enc_dim) and the attention weights (batch, src_len).
    """

    def __init__(self, enc_dim: int = 32, dec_dim: int = 32, attn_dim: int = 32):
        super().__init__()
        self.W_enc = nn.Linear(enc_dim, attn_dim, bias=False)
        self.W_dec = nn.Linear(dec_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, decoder_hidden, encoder_outputs, src_lengths=None):
        energy = torch.tanh(self.W_enc(encoder_outputs) + self.W_dec(decoder_hidden).unsqueeze(1))
        scores = self.v(energy).squeeze(-1)
        weights = F.softmax(scores, dim=1)
        if src_lengths is not None:
            steps = torch.arange(encoder_outputs.size(1), device=scores.device)
            mask = steps[None, :] < src_lengths[:, None]
            weights = weights * mask.to(weights.dtype)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)
        return context, weights
