import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    """Additive attention over the encoder states.

    Args:
        hidden_size: size of the decoder state
        enc_size: size of one encoder state (2 * hidden for a bidirectional encoder)
        attn_size: size of the space in which both are compared
    """

    def __init__(self, hidden_size=128, enc_size=128, attn_size=64):
        super().__init__()
        self.W_query = nn.Linear(hidden_size, attn_size, bias=False)
        self.W_keys = nn.Linear(enc_size, attn_size, bias=False)
        self.v = nn.Linear(attn_size, 1, bias=False)

    def forward(self, decoder_hidden, encoder_outputs, src_mask=None):
        """
        decoder_hidden:  (batch, hidden_size)
        encoder_outputs: (batch, src_len, enc_size)
        src_mask:        (batch, src_len), 1 for words and 0 for padding

        returns the context (batch, enc_size) and the weights (batch, src_len)
        """
        query = self.W_query(decoder_hidden).unsqueeze(1)
        keys = self.W_keys(encoder_outputs)
        energy = self.v(torch.tanh(query + keys))

        if src_mask is not None:
            energy = energy.masked_fill(src_mask.unsqueeze(-1) == 0, -1e9)

        weights = F.softmax(energy, dim=-1)
        context = torch.sum(weights * encoder_outputs, dim=1)
        return context, weights.squeeze(-1)
