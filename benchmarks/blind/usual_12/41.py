import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongAttnDecoderStep(nn.Module):
    """One decoding step with Luong's global attention, score "dot" or "general".

    Everything is time-major, as nn.GRU produces it. The scores of the paper are not scaled.
    """

    def __init__(self, hidden_size=32, output_size=50, method="general", pad_idx=0, dropout=0.1):
        super().__init__()
        if method not in ("dot", "general"):
            raise ValueError(method)
        self.method = method
        self.embedding = nn.Embedding(output_size, hidden_size, padding_idx=pad_idx)
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(hidden_size, hidden_size)
        if method == "general":
            self.attn = nn.Linear(hidden_size, hidden_size, bias=False)
        self.concat = nn.Linear(hidden_size * 2, hidden_size)
        self.out = nn.Linear(hidden_size, output_size)

    def score(self, hidden, encoder_outputs):
        keys = self.attn(encoder_outputs) if self.method == "general" else encoder_outputs
        return torch.sum(hidden * keys, dim=2)

    def forward(self, input_step, last_hidden, encoder_outputs, src_mask=None):
        """
        input_step: (1, batch) ids; last_hidden: (1, batch, hidden)
        encoder_outputs: (src_len, batch, hidden); src_mask: bool (src_len, batch), True for words
        """
        embedded = self.dropout(self.embedding(input_step))
        rnn_output, hidden = self.gru(embedded, last_hidden)

        energies = self.score(rnn_output, encoder_outputs)
        if src_mask is not None:
            energies = energies.masked_fill(~src_mask, float("-inf"))
        weights = F.softmax(energies, dim=0)

        context = torch.einsum("sb,sbh->bh", weights, encoder_outputs)
        merged = torch.cat((rnn_output.squeeze(0), context), dim=1)
        logits = self.out(torch.tanh(self.concat(merged)))
        return logits, hidden, weights.t()
