import torch
import torch.nn as nn
import torch.nn.functional as F


class LuongDecoder(nn.Module):
    """Luong global attention ("general" score) with input feeding.

    The score is the plain bilinear product h_t^T W h_s as in the paper, without any scaling.
    The new decoder state attends (Luong), not the previous one (Bahdanau), and the attentional
    vector takes the place of a value/output projection.

    enc_out: (B, S, hidden), enc_len: (B,) lengths (at least 1), targets: (B, T) gold inputs
    """

    def __init__(self, vocab_size=100, emb_dim=32, hidden=64, dropout=0.1):
        super().__init__()
        self.hidden = hidden
        self.embed = nn.Embedding(vocab_size, emb_dim)
        self.cell = nn.LSTMCell(emb_dim + hidden, hidden)
        self.W_a = nn.Linear(hidden, hidden, bias=False)
        self.W_c = nn.Linear(2 * hidden, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.generator = nn.Linear(hidden, vocab_size)

    def attend(self, h, enc_out, keep):
        score = torch.bmm(enc_out, self.W_a(h).unsqueeze(2)).squeeze(2)
        score = score.masked_fill(~keep, float("-inf"))
        align = F.softmax(score, dim=1)
        context = torch.bmm(align.unsqueeze(1), enc_out).squeeze(1)
        return context, align

    def forward(self, targets, enc_out, enc_len, state=None):
        B, S, _ = enc_out.shape
        keep = torch.arange(S, device=enc_out.device)[None, :] < enc_len[:, None]
        if state is None:
            zeros = enc_out.new_zeros(B, self.hidden)
            state = (zeros, zeros)
        feed = enc_out.new_zeros(B, self.hidden)
        logits, aligns = [], []
        for emb in self.embed(targets).unbind(1):
            state = self.cell(torch.cat([emb, feed], dim=1), state)
            context, align = self.attend(state[0], enc_out, keep)
            feed = torch.tanh(self.W_c(torch.cat([context, state[0]], dim=1)))
            logits.append(self.generator(self.dropout(feed)))
            aligns.append(align)
        return torch.stack(logits, 1), torch.stack(aligns, 1)
