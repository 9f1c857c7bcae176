"""ESIM: natural language inference by soft alignment of premise and hypothesis."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Seq2SeqEncoder(nn.Module):
    def __init__(self, input_size, hidden):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, _ = self.lstm(packed)
        return pad_packed_sequence(out, batch_first=True, total_length=x.size(1))[0]


class RNNDropout(nn.Dropout):
    """The same channels are dropped for all words of a sentence."""

    def forward(self, x):
        ones = x.new_ones(x.size(0), 1, x.size(-1))
        return x * F.dropout(ones, self.p, self.training)


def masked_softmax(scores, mask):
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)


class ESIM(nn.Module):
    """
    Inputs: ``premise`` (B, P) and ``hypothesis`` (B, H), word ids, 0 on the right for padding. Every sentence
    has at least one word. Output: logits (B, num_classes).

    Encoder and composition layer are shared by the two sentences.
    """

    def __init__(self, vocab_size=5000, emb_dim=100, hidden=100, num_classes=3, dropout=0.3):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.rnn_dropout = RNNDropout(dropout)
        self.encoder = Seq2SeqEncoder(emb_dim, hidden)
        self.projection = nn.Sequential(nn.Linear(8 * hidden, hidden), nn.ReLU())
        self.composition = Seq2SeqEncoder(hidden, hidden)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(8 * hidden, hidden),
            nn.Tanh(),
            nn.Dropout(dropout),
            nn.Linear(hidden, num_classes),
        )

    @staticmethod
    def align(a, a_mask, b, b_mask):
        """Each word of ``a`` gets the words of ``b`` it is about, and the other way round."""
        scores = a @ b.transpose(1, 2)  # the plain dot product of the paper
        a_to_b = masked_softmax(scores, b_mask.unsqueeze(1))
        b_to_a = masked_softmax(scores.transpose(1, 2), a_mask.unsqueeze(1))
        return a_to_b @ b, b_to_a @ a

    def enhance(self, x, aligned):
        return self.projection(torch.cat([x, aligned, x - aligned, x * aligned], dim=-1))

    @staticmethod
    def pool(x, mask):
        m = mask.unsqueeze(-1)
        mean = (x * m).sum(dim=1) / m.sum(dim=1)
        peak = x.masked_fill(~m, torch.finfo(x.dtype).min).amax(dim=1)
        return torch.cat([mean, peak], dim=-1)

    def forward(self, premise, hypothesis):
        p_mask, h_mask = premise != 0, hypothesis != 0
        p_len, h_len = p_mask.sum(dim=1), h_mask.sum(dim=1)

        p = self.encoder(self.rnn_dropout(self.embedding(premise)), p_len)
        h = self.encoder(self.rnn_dropout(self.embedding(hypothesis)), h_len)
        p_aligned, h_aligned = self.align(p, p_mask, h, h_mask)

        p = self.composition(self.rnn_dropout(self.enhance(p, p_aligned)), p_len)
        h = self.composition(self.rnn_dropout(self.enhance(h, h_aligned)), h_len)
        return self.classifier(torch.cat([self.pool(p, p_mask), self.pool(h, h_mask)], dim=-1))
