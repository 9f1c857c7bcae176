import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class WordAttention(nn.Module):
    def __init__(self, in_dim, att_dim):
        super().__init__()
        self.proj = nn.Linear(in_dim, att_dim)
        self.context = nn.Linear(att_dim, 1, bias=False)

    def forward(self, h, mask):
        u = torch.tanh(self.proj(h))
        scores = self.context(u).squeeze(-1)
        scores = scores.masked_fill(mask == 0, 1e-9)
        alpha = torch.softmax(scores, dim=1)
        return torch.einsum("bt,btd->bd", alpha, h), alpha


class HANSentenceClassifier(nn.Module):
    """Word level part of a hierarchical attention network.

    Takes right padded token ids (``pad_idx`` marks padding) and gives class logits together
    with the word weights of every sentence.
    """

    def __init__(self, vocab_size=1000, emb_dim=50, hidden=32, att_dim=32, num_classes=5, pad_idx=0):
        super().__init__()
        self.pad_idx = pad_idx
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=pad_idx)
        self.gru = nn.GRU(emb_dim, hidden, batch_first=True, bidirectional=True)
        self.attention = WordAttention(2 * hidden, att_dim)
        self.fc = nn.Linear(2 * hidden, num_classes)

    def forward(self, ids):
        mask = ids.ne(self.pad_idx)
        lengths = mask.sum(dim=1).clamp(min=1)
        emb = self.embedding(ids)
        packed = pack_padded_sequence(emb, lengths.cpu(), batch_first=True, enforce_sorted=False)
        h, _ = self.gru(packed)
        h, _ = pad_packed_sequence(h, batch_first=True, total_length=ids.size(1))
        sent, alpha = self.attention(h, mask)
        return self.fc(sent), alpha
