import torch
import torch.nn as nn


class LuongLocalDecoder(nn.Module):
    """LSTM decoder with the predictive local attention ("local-p") of Luong et al. (2015).

    For every target step an aligned source position p_t = S * sigmoid(v' tanh(W h_t)) is
    predicted. The softmax runs over the window [p_t - D, p_t + D]; the weights are then
    multiplied by a Gaussian around p_t with sigma = D / 2. As in the paper they are not
    normalised again after that. The attentional state is fed back into the next input.
    """

    def __init__(self, vocab_size=1000, emb_dim=32, hidden=64, window=3, pad_idx=0):
        super().__init__()
        self.hidden = hidden
        self.window = window
        self.embed = nn.Embedding(vocab_size, emb_dim, padding_idx=pad_idx)
        self.cell = nn.LSTMCell(emb_dim + hidden, hidden)
        self.score = nn.Linear(hidden, hidden, bias=False)
        self.pos_proj = nn.Linear(hidden, hidden, bias=False)
        self.pos_vec = nn.Linear(hidden, 1, bias=False)
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)
        self.generator = nn.Linear(hidden, vocab_size)

    def attend(self, h, memory, lengths):
        B, S, _ = memory.shape
        center = lengths.to(h.dtype) * torch.sigmoid(self.pos_vec(torch.tanh(self.pos_proj(h)))).squeeze(-1)
        idx = torch.arange(S, device=h.device, dtype=h.dtype)
        offset = idx.unsqueeze(0) - center.unsqueeze(1)

        inside = (offset.abs() <= self.window) & (idx.unsqueeze(0) < lengths.unsqueeze(1))
        scores = torch.bmm(self.score(memory), h.unsqueeze(2)).squeeze(2)
        align = torch.softmax(scores.masked_fill(~inside, float("-inf")), dim=1)
        sigma = self.window / 2
        align = align * torch.exp(-offset.pow(2) / (2 * sigma ** 2))
        ctx = torch.bmm(align.unsqueeze(1), memory).squeeze(1)
        return ctx, align

    def forward(self, tgt, memory, lengths, state=None):
        """tgt: (B, T) ids, memory: (B, S, hidden), lengths: (B,) source lengths (>= 1)."""
        B = tgt.size(0)
        if state is None:
            zeros = memory.new_zeros(B, self.hidden)
            state = (zeros, zeros)
        feed = memory.new_zeros(B, self.hidden)
        h, c = state
        logits, aligns = [], []
        for emb in self.embed(tgt).unbind(dim=1):
            h, c = self.cell(torch.cat([emb, feed], dim=1), (h, c))
            ctx, align = self.attend(h, memory, lengths)
            feed = torch.tanh(self.combine(torch.cat([ctx, h], dim=1)))
            logits.append(self.generator(feed))
            aligns.append(align)
        return torch.stack(logits, dim=1), torch.stack(aligns, dim=1)
