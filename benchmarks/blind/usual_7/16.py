import torch
import torch.nn as nn


class GlobalAttention(nn.Module):
    """
    Luong attention for one decoder step, time-major like the rest of the seq2seq code.

        decoder_state    (B, H)
        encoder_outputs  (S, B, H)
        src_lengths      (B,)

    returns the attentional state (B, H) and the alignment (S, B); every column of it sums to one.
    """

    def __init__(self, hidden_size=64, method="general"):
        super().__init__()
        self.method = method
        if method == "general":
            self.W_a = nn.Linear(hidden_size, hidden_size, bias=False)
        elif method == "concat":
            self.W_a = nn.Linear(2 * hidden_size, hidden_size, bias=False)
            self.v_a = nn.Parameter(torch.randn(hidden_size) * hidden_size ** -0.5)
        elif method != "dot":
            raise ValueError(method)
        self.W_c = nn.Linear(2 * hidden_size, hidden_size, bias=False)

    def score(self, h_t, h_s):
        if self.method == "dot":
            return (h_s * h_t).sum(-1)
        if self.method == "general":
            return (self.W_a(h_s) * h_t).sum(-1)
        pair = torch.cat([h_t.expand(h_s.size(0), -1, -1), h_s], dim=-1)
        return torch.tanh(self.W_a(pair)) @ self.v_a

    def forward(self, decoder_state, encoder_outputs, src_lengths=None):
        scores = self.score(decoder_state.unsqueeze(0), encoder_outputs)
        if src_lengths is not None:
            steps = torch.arange(scores.size(0), device=scores.device).unsqueeze(1)
            scores = scores.masked_fill(steps >= src_lengths.unsqueeze(0), -float("inf"))
        align = torch.softmax(scores, dim=0)
        context = torch.einsum("sb,sbh->bh", align, encoder_outputs)
        attn_h = torch.tanh(self.W_c(torch.cat([context, decoder_state], dim=-1)))
        return attn_h, align
