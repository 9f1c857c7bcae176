import torch
import torch.nn as nn
import torch.nn.functional as F


class BahdanauAttention(nn.Module):
    """Additive attention for a recurrent decoder.

        e_ij = v^T tanh(W s_i + U h_j + b)

    The projected encoder states U h_j do not depend on the decoder step; compute them
    once with ``precompute`` and hand them to every step.
    """

    def __init__(self, enc_dim=64, dec_dim=64, attn_dim=32):
        super().__init__()
        self.W = nn.Linear(dec_dim, attn_dim)
        self.U = nn.Linear(enc_dim, attn_dim, bias=False)
        self.v = nn.Linear(attn_dim, 1, bias=False)

    def precompute(self, enc_states):
        return self.U(enc_states)

    def forward(self, dec_state, enc_states, src_lengths=None, projected=None):
        """
        dec_state: (B, dec_dim) decoder hidden state
        enc_states: (B, S, enc_dim)
        src_lengths: (B,) number of real source tokens, at least 1
        returns: context (B, enc_dim), weights (B, S)
        """
        if projected is None:
            projected = self.precompute(enc_states)
        energy = self.v(torch.tanh(self.W(dec_state).unsqueeze(1) + projected)).squeeze(-1)

        if src_lengths is not None:
            steps = torch.arange(enc_states.size(1), device=enc_states.device)
            outside = steps[None, :] >= src_lengths.to(enc_states.device)[:, None]
            energy = energy.masked_fill(outside, torch.finfo(energy.dtype).min)

        weights = F.softmax(energy, dim=-1)
        context = torch.bmm(weights.unsqueeze(1), enc_states).squeeze(1)
        return context, weights
