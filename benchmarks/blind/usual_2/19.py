import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongAttention(nn.Module):
    """Global attention of Luong et al. (2015), time-major as in our RNNs.

    method: 'dot', 'general' or 'concat'. The scores are not scaled, as in the paper.
    """

    def __init__(self, hidden_size=128, method="general"):
        super().__init__()
        if method not in ("dot", "general", "concat"):
            raise ValueError(method, "is not an appropriate attention method.")
        self.method = method
        self.hidden_size = hidden_size
        if method == "general":
            self.attn = nn.Linear(hidden_size, hidden_size, bias=False)
        elif method == "concat":
            self.attn = nn.Linear(hidden_size * 2, hidden_size)
            self.v = nn.Parameter(torch.randn(hidden_size) * hidden_size ** -0.5)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)

    def score(self, hidden, encoder_outputs):
        if self.method == "dot":
            return torch.sum(hidden * encoder_outputs, dim=2)
        if self.method == "general":
            return torch.sum(hidden * self.attn(encoder_outputs), dim=2)
        both = torch.cat((hidden.expand(encoder_outputs.size(0), -1, -1), encoder_outputs), 2)
        return torch.sum(self.v * torch.tanh(self.attn(both)), dim=2)

    def forward(self, hidden, encoder_outputs, src_lengths=None):
        """
        hidden: (1, batch, hidden), output of the decoder GRU for this step
        encoder_outputs: (src_len, batch, hidden)
        src_lengths: (batch,) number of words of each source sentence

        Returns the attentional state (batch, hidden) and the weights (batch, src_len).
        """
        energies = self.score(hidden, encoder_outputs)  # (src_len, batch)
        if src_lengths is not None:
            steps = torch.arange(energies.size(0), device=energies.device).unsqueeze(1)
            energies = energies.masked_fill(steps >= src_lengths.to(energies.device).unsqueeze(0), float("-inf"))

        weights = F.softmax(energies, dim=0).t()
        context = weights.unsqueeze(1).bmm(encoder_outputs.transpose(0, 1)).squeeze(1)
        output = torch.tanh(self.concat(torch.cat((context, hidden.squeeze(0)), 1)))
        return output, weights
