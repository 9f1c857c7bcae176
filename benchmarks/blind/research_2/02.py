import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class AttentionPool(nn.Module):
    """u_t = tanh(W h_t + b);  a_t = softmax_t(u_t . u_w);  s = sum_t a_t h_t"""

    def __init__(self, hidden, att_dim):
        super().__init__()
        self.proj = nn.Linear(hidden, att_dim)
        self.context = nn.Linear(att_dim, 1, bias=False)

    def forward(self, h, mask):
        u = torch.tanh(self.proj(h))
        scores = self.context(u).squeeze(-1)
        scores = scores.masked_fill(~mask, -1e9)
        alpha = torch.softmax(scores, dim=0)
        alpha = alpha * mask
        return (alpha.unsqueeze(-1) * h).sum(dim=1), alpha


class BiGRU(nn.Module):
    def __init__(self, in_dim, hidden):
        super().__init__()
        self.rnn = nn.GRU(in_dim, hidden, batch_first=True, bidirectional=True)

    def forward(self, x, mask):
        lengths = mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = self.rnn(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=x.size(1))
        return out


class HierarchicalAttentionNetwork(nn.Module):
    """Hierarchical Attention Networks for Document Classification (Yang et al., 2016).

    Args:
        docs: LongTensor (batch, sentences, words), 0 is padding.
    Returns:
        logits (batch, n_classes), word weights (batch, sentences, words), sentence weights
        (batch, sentences).
    """

    def __init__(self, vocab_size=1000, emb_dim=32, hidden=24, att_dim=48, n_classes=5, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.word_rnn = BiGRU(emb_dim, hidden)
        self.word_att = AttentionPool(2 * hidden, att_dim)
        self.sent_rnn = BiGRU(2 * hidden, hidden)
        self.sent_att = AttentionPool(2 * hidden, att_dim)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * hidden, n_classes)

    def forward(self, docs):
        b, s, w = docs.shape
        tokens = docs.reshape(b * s, w)
        word_mask = tokens.ne(0)
        h = self.word_rnn(self.drop(self.embed(tokens)), word_mask)
        sents, word_alpha = self.word_att(h, word_mask)

        sents = sents.view(b, s, -1)
        sent_mask = word_mask.any(dim=1).view(b, s)
        h = self.sent_rnn(self.drop(sents), sent_mask)
        doc, sent_alpha = self.sent_att(h, sent_mask)
        return self.fc(self.drop(doc)), word_alpha.view(b, s, w), sent_alpha
