import torch
import torch.nn as nn


class AttentivePool(nn.Module):
    """Weighted mean of a sequence; the weights compare each state with a learned context vector."""

    def __init__(self, dim, attn_dim):
        super().__init__()
        self.proj = nn.Linear(dim, attn_dim)
        self.context = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, states, mask):
        scores = self.context(torch.tanh(self.proj(states)))
        scores = scores.masked_fill(~mask.unsqueeze(-1), -1e4)
        weights = torch.softmax(scores, dim=-1)
        return (weights * states).sum(dim=1), weights.squeeze(-1)


class HierarchicalAttentionNetwork(nn.Module):
    """Document classifier with word-level and sentence-level attention (Yang et al., 2016).

    Args:
        vocab_size: number of word ids; id 0 is padding.
        emb_dim: size of word embeddings.
        hidden: size of each direction of the GRUs.
        num_classes: number of labels.
    """

    def __init__(self, vocab_size=1000, emb_dim=64, hidden=32, attn_dim=64, num_classes=5, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.word_gru = nn.GRU(emb_dim, hidden, batch_first=True, bidirectional=True)
        self.word_pool = AttentivePool(2 * hidden, attn_dim)
        self.sent_gru = nn.GRU(2 * hidden, hidden, batch_first=True, bidirectional=True)
        self.sent_pool = AttentivePool(2 * hidden, attn_dim)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * hidden, num_classes)

    def forward(self, docs):
        """docs: [B, sentences, words] ids. Returns logits, word weights and sentence weights."""
        b, s, w = docs.shape
        words = docs.reshape(b * s, w)
        mask = words.ne(0)

        states, _ = self.word_gru(self.dropout(self.embed(words)))
        sentences, word_weights = self.word_pool(states, mask)

        sentences = sentences.view(b, s, -1)
        sent_mask = mask.view(b, s, w).any(dim=-1)
        states, _ = self.sent_gru(self.dropout(sentences))
        document, sent_weights = self.sent_pool(states, sent_mask)
        return self.classifier(self.dropout(document)), word_weights.view(b, s, w), sent_weights
