import torch
import torch.nn as nn


class AdditiveAttention(nn.Module):
    """Bahdanau attention: score(s, h) = v^T tanh(W_s s + W_h h).

    Args:
        dec_hid_dim: size of the decoder state
        enc_hid_dim: size of one encoder output (both directions together)
        attn_dim: size of the hidden layer
    """

    def __init__(self, dec_hid_dim: int = 64, enc_hid_dim: int = 128, attn_dim: int = 64):
        super().__init__()
        self.attn = nn.Linear(dec_hid_dim + enc_hid_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs, mask=None):
        """
        hidden: (batch, dec_hid_dim)
        encoder_outputs: (batch, src_len, enc_hid_dim)
        mask: (batch, src_len), 1 for source tokens, 0 for padding

        returns the context (batch, enc_hid_dim) and the weights (batch, src_len)
        """
        batch_size, src_len, _ = encoder_outputs.shape

        hidden = hidden.repeat(src_len, 1).view(batch_size, src_len, -1)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        scores = self.v(energy).squeeze(2)

        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e10)

        weights = torch.softmax(scores, dim=1)
        context = torch.bmm(weights.unsqueeze(1), encoder_outputs).squeeze(1)
        return context, weights
