import torch
import torch.nn as nn


class LuongAttention(nn.Module):
    """Global attention of Luong et al. (2015), "general" score, no scaling.

    All tensors are time-major, as returned by nn.LSTM without batch_first:

        decoder_out: (T, B, H)
        encoder_out: (S, B, H)
        src_lengths: (B,)

    Returns the attentional states (T, B, H) and the weights (T, B, S).
    """

    def __init__(self, hidden_size: int = 64):
        super().__init__()
        self.W_a = nn.Linear(hidden_size, hidden_size, bias=False)
        self.W_c = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def forward(self, decoder_out, encoder_out, src_lengths=None):
        S = encoder_out.size(0)
        score = torch.einsum("sbh,tbh->stb", self.W_a(encoder_out), decoder_out)
        if src_lengths is not None:
            pad = torch.arange(S, device=score.device)[:, None] >= src_lengths.to(score.device)[None, :]
            score = score.masked_fill(pad[:, None, :], float("-inf"))
        align = torch.softmax(score, dim=0)
        context = torch.einsum("stb,sbh->tbh", align, encoder_out)
        attentional = torch.tanh(self.W_c(torch.cat([context, decoder_out], dim=-1)))
        return attentional, align.permute(1, 2, 0)
