"""Hierarchical attention network for document classification."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class GRUAttention(nn.Module):
    """Bidirectional GRU over a padded sequence followed by attention with a context vector."""

    def __init__(self, input_dim, hidden):
        super().__init__()
        self.gru = nn.GRU(input_dim, hidden, batch_first=True, bidirectional=True)
        self.hidden_proj = nn.Linear(2 * hidden, 2 * hidden)
        self.context = nn.Parameter(torch.empty(2 * hidden).uniform_(-0.1, 0.1))

    def forward(self, x, lengths):
        """x: (N, L, input_dim), lengths: (N,) all >= 1. Returns (N, 2 * hidden) and (N, L)."""
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        h, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=x.size(1))
        score = torch.tanh(self.hidden_proj(h)) @ self.context
        inside = torch.arange(x.size(1), device=x.device).unsqueeze(0) < lengths.unsqueeze(1)
        alpha = score.masked_fill(~inside, float("-inf")).softmax(dim=1)
        return (alpha.unsqueeze(-1) * h).sum(dim=1), alpha


class HierarchicalAttentionNetwork(nn.Module):
    """
    Args:
        documents: (B, S, W) word ids, 0 for padding. Words of a sentence start at the left and
            sentences of a document at the top; every document has at least one word in its first sentence.

    Returns:
        logits (B, classes); with ``return_attention`` also the sentence weights (B, S) and the word weights
        (B, S, W), both zero on padding.
    """

    def __init__(self, vocab_size=5000, num_classes=5, emb_dim=100, word_hidden=50, sent_hidden=50, dropout=0.3):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.word_level = GRUAttention(emb_dim, word_hidden)
        self.sentence_level = GRUAttention(2 * word_hidden, sent_hidden)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * sent_hidden, num_classes)

    def forward(self, documents, return_attention=False):
        B, S, W = documents.shape
        words_per_sentence = (documents != 0).sum(dim=-1)          # (B, S)
        sentences_per_doc = (words_per_sentence > 0).sum(dim=-1)   # (B,)
        used = words_per_sentence > 0

        # only real sentences go through the word level: packing does not accept length zero
        x = self.dropout(self.embedding(documents[used]))
        vectors, word_alpha = self.word_level(x, words_per_sentence[used])

        sentences = vectors.new_zeros(B, S, vectors.size(-1))
        sentences[used] = vectors
        doc, sent_alpha = self.sentence_level(self.dropout(sentences), sentences_per_doc)
        logits = self.classifier(self.dropout(doc))
        if not return_attention:
            return logits

        full = word_alpha.new_zeros(B, S, W)
        full[used] = word_alpha
        return logits, sent_alpha, full
