import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongAttention(nn.Module):
    """Global attention of Luong et al. (2015) with the "general" score, for time-major encoders.

    Scores have shape (src_len, batch), so they are normalised over dimension 0. Luong's scores are not scaled.
    Returns the attentional state h~ = tanh(W_c [c; h]) and the weights as (batch, src_len).
    """

    def __init__(self, hidden_size=256, method="general"):
        super().__init__()
        if method not in ("dot", "general"):
            raise ValueError(method, "is not an appropriate attention method.")
        self.method = method
        self.hidden_size = hidden_size
        if method == "general":
            self.attn = nn.Linear(hidden_size, hidden_size, bias=False)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)

    def score(self, hidden, encoder_outputs):
        keys = self.attn(encoder_outputs) if self.method == "general" else encoder_outputs
        return torch.sum(hidden * keys, dim=2)

    def forward(self, hidden, encoder_outputs, src_lengths=None):
        """
        hidden: (1, batch, hidden_size), output of one decoder step
        encoder_outputs: (src_len, batch, hidden_size)
        src_lengths: (batch,)
        """
        energies = self.score(hidden, encoder_outputs)
        if src_lengths is not None:
            steps = torch.arange(encoder_outputs.size(0), device=encoder_outputs.device)
            energies = energies.masked_fill(steps[:, None] >= src_lengths[None, :], float("-inf"))

        weights = F.softmax(energies, dim=0)
        context = torch.einsum("sb,sbh->bh", weights, encoder_outputs)
        attentional = torch.tanh(self.concat(torch.cat((context, hidden.squeeze(0)), dim=1)))
        return attentional, weights.t()
