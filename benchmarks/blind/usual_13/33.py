import torch
import torch.nn as nn


class LuongDecoderStep(nn.Module):
    """One decoding step with Luong "general" attention and input feeding.

    Everything is time-major like the default of nn.LSTM: encoder outputs are
    (src_len, batch, hidden). The score has no 1/sqrt(d), as in the paper.
    """

    def __init__(self, emb_dim=32, hidden=64):
        super().__init__()
        self.hidden = hidden
        self.rnn = nn.LSTMCell(emb_dim + hidden, hidden)
        self.W_a = nn.Linear(hidden, hidden, bias=False)
        self.W_c = nn.Linear(2 * hidden, hidden, bias=False)

    def init_feed(self, batch, device=None):
        return torch.zeros(batch, self.hidden, device=device)

    def forward(self, y_emb, state, feed, enc_out, src_lengths=None):
        """
        y_emb: (batch, emb_dim); state: (h, c), each (batch, hidden); feed: (batch, hidden)
        returns attentional hidden state, new rnn state, alignment (src_len, batch)
        """
        h, c = self.rnn(torch.cat([y_emb, feed], dim=-1), state)

        # h^T (W enc) for every source step
        score = (self.W_a(enc_out) * h.unsqueeze(0)).sum(dim=-1)
        if src_lengths is not None:
            t = torch.arange(enc_out.size(0), device=enc_out.device).unsqueeze(1)
            score = score.masked_fill(t >= src_lengths.unsqueeze(0), float("-inf"))
        align = torch.softmax(score, dim=0)

        context = torch.einsum("sb,sbh->bh", align, enc_out)
        h_tilde = torch.tanh(self.W_c(torch.cat([context, h], dim=-1)))
        return h_tilde, (h, c), align
