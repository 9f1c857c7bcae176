import torch
import torch.nn as nn


class AttentionPoolingClassifier(nn.Module):
    """BiLSTM text classifier with a learned attention pooling over the words.

    ``tokens`` is a (batch, length) tensor of word ids, right-padded with ``pad_idx``.
    """

    def __init__(self, vocab_size=100, embed_dim=32, hidden_dim=32, num_classes=3, pad_idx=0, dropout=0.2):
        super().__init__()
        self.pad_idx = pad_idx
        self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_idx)
        self.encoder = nn.LSTM(embed_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.attn_proj = nn.Linear(2 * hidden_dim, hidden_dim)
        self.attn_vector = nn.Linear(hidden_dim, 1, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(2 * hidden_dim, num_classes)

    def encode(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        out, _ = self.encoder(packed)
        out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=tokens.size(1))
        return out

    def forward(self, tokens):
        mask = tokens != self.pad_idx
        lengths = mask.sum(dim=1).clamp(min=1)
        states = self.encode(tokens, lengths)

        scores = self.attn_vector(torch.tanh(self.attn_proj(states))).squeeze(-1)
        scores = scores * mask.float()
        weights = torch.softmax(scores, dim=1)
        pooled = torch.sum(weights.unsqueeze(-1) * states, dim=1)
        return self.classifier(self.dropout(pooled))
