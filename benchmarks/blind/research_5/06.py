import torch
import torch.nn as nn


class ContextAttention(nn.Module):
    """u_t = tanh(W h_t + b), scored against a learned context vector."""

    def __init__(self, in_dim, att_dim):
        super().__init__()
        self.proj = nn.Linear(in_dim, att_dim)
        self.context = nn.Linear(att_dim, 1, bias=False)

    def forward(self, h, mask):
        u = torch.tanh(self.proj(h))
        score = self.context(u)
        score = score.masked_fill(~mask.unsqueeze(-1), -1e9)
        alpha = torch.softmax(score, dim=-1)
        return (alpha * h).sum(dim=1), alpha.squeeze(-1)


class HierarchicalAttentionNetwork(nn.Module):
    """Document classifier: words -> sentence vectors -> document vector (Yang et al., 2016).

    Input: LongTensor of token ids, ``[batch, sentences, words]``, 0 is padding.
    Returns the logits and the attention over words and over sentences.
    """

    def __init__(self, vocab_size=1000, emb_dim=64, hidden=32, att_dim=64, num_classes=5, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.word_rnn = nn.GRU(emb_dim, hidden, batch_first=True, bidirectional=True)
        self.word_attention = ContextAttention(2 * hidden, att_dim)
        self.sent_rnn = nn.GRU(2 * hidden, hidden, batch_first=True, bidirectional=True)
        self.sent_attention = ContextAttention(2 * hidden, att_dim)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * hidden, num_classes)

    def forward(self, docs):
        b, s, w = docs.shape
        word_mask = docs.ne(0)
        sent_mask = word_mask.any(dim=-1)

        words = self.dropout(self.embedding(docs)).view(b * s, w, -1)
        words, _ = self.word_rnn(words)
        sents, word_alpha = self.word_attention(words, word_mask.view(b * s, w))

        sents, _ = self.sent_rnn(self.dropout(sents).view(b, s, -1))
        doc, sent_alpha = self.sent_attention(sents, sent_mask)
        return self.classifier(self.dropout(doc)), word_alpha.view(b, s, w), sent_alpha
