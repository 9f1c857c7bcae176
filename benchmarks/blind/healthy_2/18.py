"""BiDAF reader: predicts the answer span of a question in a passage."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class MaskedBiLSTM(nn.Module):
    def __init__(self, input_size, hidden, num_layers=1, dropout=0.0):
        super().__init__()
        self.rnn = nn.LSTM(input_size, hidden, num_layers=num_layers, batch_first=True, bidirectional=True,
                           dropout=dropout if num_layers > 1 else 0.0)

    def forward(self, x, mask):
        lengths = mask.sum(dim=1).clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        return pad_packed_sequence(out, batch_first=True, total_length=x.size(1))[0]


def masked_softmax(logits, mask, dim):
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(dim=dim)


class BiDAF(nn.Module):
    """Ids are padded on the right with 0. ``forward`` returns start and end logits over the
    passage, with padding set to the most negative finite number."""

    def __init__(self, vocab_size=10000, emb_dim=100, hidden=64, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.encoder = MaskedBiLSTM(emb_dim, hidden)
        d = 2 * hidden
        # trilinear similarity w . [c; q; c * q], kept as three vectors to avoid a (C, Q, 3d) tensor
        self.w_c = nn.Linear(d, 1, bias=False)
        self.w_q = nn.Linear(d, 1, bias=False)
        self.w_cq = nn.Parameter(torch.empty(1, 1, d))
        nn.init.xavier_uniform_(self.w_cq)
        self.modeling = MaskedBiLSTM(4 * d, hidden, num_layers=2, dropout=dropout)
        self.end_rnn = MaskedBiLSTM(d, hidden)
        self.start_head = nn.Linear(5 * d, 1)
        self.end_head = nn.Linear(5 * d, 1)
        self.dropout = nn.Dropout(dropout)

    def attention_flow(self, c, q, c_mask, q_mask):
        sim = self.w_c(c) + self.w_q(q).transpose(1, 2) + (c * self.w_cq) @ q.transpose(1, 2)
        q_keep = q_mask.unsqueeze(1)
        c2q = masked_softmax(sim, q_keep, dim=2) @ q
        # the maximum must not pick a padded question word
        best = sim.masked_fill(~q_keep, torch.finfo(sim.dtype).min).max(dim=2).values
        b = masked_softmax(best, c_mask, dim=1)
        q2c = (b.unsqueeze(1) @ c).expand_as(c)
        return torch.cat([c, c2q, c * c2q, c * q2c], dim=-1)

    def forward(self, context, question):
        c_mask, q_mask = context.ne(0), question.ne(0)
        c = self.encoder(self.dropout(self.embedding(context)), c_mask)
        q = self.encoder(self.dropout(self.embedding(question)), q_mask)
        g = self.attention_flow(c, q, c_mask, q_mask)
        m = self.modeling(self.dropout(g), c_mask)
        m2 = self.end_rnn(m, c_mask)
        start = self.start_head(self.dropout(torch.cat([g, m], dim=-1))).squeeze(-1)
        end = self.end_head(self.dropout(torch.cat([g, m2], dim=-1))).squeeze(-1)
        lowest = torch.finfo(start.dtype).min
        return start.masked_fill(~c_mask, lowest), end.masked_fill(~c_mask, lowest)

    @staticmethod
    def best_span(start, end, max_answer_len=15):
        """Most likely (start, end) with start <= end < start + max_answer_len."""
        n = start.size(1)
        joint = F.log_softmax(start, dim=1).unsqueeze(2) + F.log_softmax(end, dim=1).unsqueeze(1)
        band = torch.ones(n, n, dtype=torch.bool, device=start.device).triu().tril(max_answer_len - 1)
        flat = joint.masked_fill(~band, float("-inf")).flatten(1).argmax(dim=1)
        return torch.div(flat, n, rounding_mode="floor"), flat % n
