"""Hierarchical Attention Network for document classification (Yang et al., 2016)."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class AttentiveGRU(nn.Module):
    """Bidirectional GRU followed by attention pooling with a learned context vector."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.gru = nn.GRU(input_size, hidden_size, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(2 * hidden_size, 2 * hidden_size)
        self.context = nn.Linear(2 * hidden_size, 1, bias=False)

    def forward(self, x, lengths):
        """x (n, t, d), lengths (n,) -> pooled (n, 2h), weights (n, t); zeros where length is 0."""
        t = x.size(1)
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        h, _ = self.gru(packed)
        h, _ = pad_packed_sequence(h, batch_first=True, total_length=t)
        mask = torch.arange(t, device=x.device)[None, :] < lengths[:, None]
        score = self.context(torch.tanh(self.proj(h))).squeeze(-1)
        score = score.masked_fill(~mask, torch.finfo(score.dtype).min)
        weights = score.softmax(dim=-1) * mask.to(score.dtype)
        return torch.bmm(weights.unsqueeze(1), h).squeeze(1), weights


class HierarchicalAttentionNetwork(nn.Module):
    """
    documents: (B, S, W) word ids; words and sentences are padded at the end with 0, and a
    sentence made of zeros only does not exist.
    Returns class logits, sentence weights (B, S) and word weights (B, S, W).
    """

    def __init__(self, vocab_size=10000, num_classes=5, emb_dim=100, word_hidden=50,
                 sent_hidden=50, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.word_encoder = AttentiveGRU(emb_dim, word_hidden)
        self.sent_encoder = AttentiveGRU(2 * word_hidden, sent_hidden)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * sent_hidden, num_classes)

    def forward(self, documents):
        B, S, W = documents.shape
        words_per_sentence = documents.ne(0).sum(dim=2)
        sentences_per_doc = words_per_sentence.gt(0).sum(dim=1)

        words = self.dropout(self.embedding(documents.reshape(B * S, W)))
        sentences, word_weights = self.word_encoder(words, words_per_sentence.reshape(-1))
        sentences = self.dropout(sentences.view(B, S, -1))
        doc, sent_weights = self.sent_encoder(sentences, sentences_per_doc)
        return self.fc(self.dropout(doc)), sent_weights, word_weights.view(B, S, W)
