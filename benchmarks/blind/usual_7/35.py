import torch
import torch.nn as nn


def sequence_mask(lengths, max_len):
    """True at the steps that a sequence does not have."""
    steps = torch.arange(max_len, device=lengths.device)
    return steps[None, :] > lengths[:, None]


class LuongAttnDecoder(nn.Module):
    """
    LSTM decoder with Luong "general" attention and input feeding.

    Args:
        prev_words: (B, T) gold target prefix
        enc_out: (B, S, H)
        enc_len: (B,) number of source tokens of each sentence
        state: tuple of (B, H), initial state of the cell
    """

    def __init__(self, vocab_size=100, emb_size=32, hidden_size=64, dropout=0.2):
        super().__init__()
        self.hidden_size = hidden_size
        self.embed = nn.Embedding(vocab_size, emb_size)
        self.cell = nn.LSTMCell(emb_size + hidden_size, hidden_size)
        self.attn_in = nn.Linear(hidden_size, hidden_size, bias=False)
        self.attn_out = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self.readout = nn.Linear(hidden_size, vocab_size)
        self.dropout = nn.Dropout(dropout)

    def attend(self, h, enc_out, pad):
        scores = torch.bmm(enc_out, self.attn_in(h).unsqueeze(2)).squeeze(2)
        scores = scores.masked_fill(pad, float("-inf"))
        alpha = torch.softmax(scores, dim=1)
        ctx = torch.bmm(alpha.unsqueeze(1), enc_out).squeeze(1)
        return torch.tanh(self.attn_out(torch.cat([ctx, h], dim=1))), alpha

    def forward(self, prev_words, enc_out, enc_len, state=None):
        B, T = prev_words.shape
        pad = sequence_mask(enc_len, enc_out.size(1))
        if state is None:
            zeros = enc_out.new_zeros(B, self.hidden_size)
            state = (zeros, zeros)
        feed = enc_out.new_zeros(B, self.hidden_size)
        emb = self.dropout(self.embed(prev_words))

        logits, alphas = [], []
        for t in range(T):
            state = self.cell(torch.cat([emb[:, t], feed], dim=1), state)
            feed, alpha = self.attend(state[0], enc_out, pad)
            logits.append(self.readout(self.dropout(feed)))
            alphas.append(alpha)
        return torch.stack(logits, dim=1), torch.stack(alphas, dim=1)
