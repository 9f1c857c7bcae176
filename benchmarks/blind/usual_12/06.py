import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    """Additive attention over the encoder states of a batch of source sentences.

    Args:
        hidden_size: size of the decoder state.
        enc_size: size of the encoder outputs.
        attn_size: size of the scoring layer.
    """

    def __init__(self, hidden_size=32, enc_size=64, attn_size=32):
        super().__init__()
        self.query_layer = nn.Linear(hidden_size, attn_size, bias=False)
        self.key_layer = nn.Linear(enc_size, attn_size, bias=False)
        self.energy_layer = nn.Linear(attn_size, 1, bias=False)

    def forward(self, decoder_state, encoder_outputs, src_lengths=None):
        """
        decoder_state:   (batch, hidden_size)
        encoder_outputs: (batch, src_len, enc_size)
        src_lengths:     (batch,) number of real tokens in every source sentence

        Returns the context (batch, enc_size) and the weights (batch, src_len).
        """
        query = self.query_layer(decoder_state).unsqueeze(1)
        keys = self.key_layer(encoder_outputs)
        energies = self.energy_layer(torch.tanh(query + keys)).squeeze(-1)

        alphas = F.softmax(energies, dim=-1)
        if src_lengths is not None:
            steps = torch.arange(energies.size(1), device=energies.device)
            mask = steps.unsqueeze(0) < src_lengths.unsqueeze(1)
            alphas = alphas * mask.to(alphas.dtype)

        context = torch.bmm(alphas.unsqueeze(1), encoder_outputs).squeeze(1)
        return context, alphas
