import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    """Additive attention. Encoder outputs are time-major, as nn.GRU returns them by default.

    forward(hidden, encoder_outputs, src_mask):
        hidden           (batch, dec_dim)         last decoder state
        encoder_outputs  (src_len, batch, enc_dim)
        src_mask         (src_len, batch)         1 = word, 0 = <pad>

    Returns the context (batch, enc_dim) and the weights (src_len, batch).
    """

    def __init__(self, enc_dim=64, dec_dim=64, attn_dim=32):
        super().__init__()
        self.W_enc = nn.Linear(enc_dim, attn_dim, bias=False)
        self.W_dec = nn.Linear(dec_dim, attn_dim)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, hidden, encoder_outputs, src_mask=None):
        # the decoder term broadcasts over time
        energy = torch.tanh(self.W_enc(encoder_outputs) + self.W_dec(hidden))
        scores = self.v(energy).squeeze(2)
        if src_mask is not None:
            scores = scores.masked_fill(src_mask == 0, -1e10)
        weights = F.softmax(scores, dim=0)
        context = torch.einsum("sb,sbe->be", weights, encoder_outputs)
        return context, weights
