import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongAttention(nn.Module):
    """Global attention of Luong et al. (2015), time-major.

    decoder_state: (batch, hidden)
    encoder_out:   (src_len, batch, hidden)
    src_lengths:   optional (batch,)

    Returns the attentional state tanh(W_c [context; state]) of shape (batch, hidden) and the alignment
    of shape (src_len, batch), whose columns sum to one. The paper uses no scaling of the scores.
    """

    def __init__(self, hidden: int = 64, method: str = "general"):
        super().__init__()
        if method not in ("dot", "general"):
            raise ValueError(f"unknown scoring method {method!r}")
        self.method = method
        if method == "general":
            self.W_a = nn.Linear(hidden, hidden, bias=False)
        self.W_c = nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, decoder_state, encoder_out, src_lengths=None):
        keys = self.W_a(encoder_out) if self.method == "general" else encoder_out
        scores = (keys * decoder_state.unsqueeze(0)).sum(dim=-1)  # (src_len, batch)

        if src_lengths is not None:
            steps = torch.arange(encoder_out.size(0), device=scores.device)
            outside = steps.unsqueeze(1) >= src_lengths.to(scores.device).unsqueeze(0)
            scores = scores.masked_fill(outside, float("-inf"))

        align = F.softmax(scores, dim=0)
        context = torch.einsum("sb,sbh->bh", align, encoder_out)
        attentional = torch.tanh(self.W_c(torch.cat([context, decoder_state], dim=-1)))
        return attentional, align
