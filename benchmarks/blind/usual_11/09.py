import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongAttention(nn.Module):
    """Global attention of Luong et al. (2015), "general" or "dot" score.

    decoder_hidden:  (batch, hidden)           top layer state at this time step
    encoder_outputs: (batch, src_len, hidden)
    src_mask:        (batch, src_len)          1 for words, 0 for <pad>

    Returns the attentional hidden state (batch, hidden) and the alignment (batch, src_len).
    """

    def __init__(self, hidden_size=64, method="general"):
        super().__init__()
        if method not in ("dot", "general"):
            raise ValueError(f"{method} is not an appropriate attention method.")
        self.method = method
        self.hidden_size = hidden_size
        if method == "general":
            self.attn = nn.Linear(hidden_size, hidden_size, bias=False)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)

    def score(self, query, encoder_outputs):
        if self.method == "general":
            encoder_outputs = self.attn(encoder_outputs)
        return torch.bmm(query, encoder_outputs.transpose(1, 2))

    def forward(self, decoder_hidden, encoder_outputs, src_mask=None):
        query = decoder_hidden.unsqueeze(1)
        energies = self.score(query, encoder_outputs)
        if src_mask is not None:
            energies = energies.masked_fill(src_mask.unsqueeze(1) == 0, -1e10)
        align = F.softmax(energies, dim=1)

        context = torch.bmm(align, encoder_outputs)
        combined = torch.cat((context, query), dim=2).squeeze(1)
        return torch.tanh(self.concat(combined)), align.squeeze(1)
