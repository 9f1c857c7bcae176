"""NER tagger: word embeddings -> BiLSTM -> self-attention -> per-token labels."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class BiLSTMAttentionTagger(nn.Module):
    def __init__(self, vocab_size=10000, num_tags=9, emb_dim=100, hidden_dim=128,
                 num_heads=4, dropout=0.3):
        super().__init__()
        assert hidden_dim % 2 == 0 and hidden_dim % num_heads == 0
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=0)
        self.lstm = nn.LSTM(emb_dim, hidden_dim // 2, batch_first=True, bidirectional=True)
        self.attention = nn.MultiheadAttention(hidden_dim, num_heads, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(hidden_dim)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(hidden_dim, num_tags)

    def forward(self, tokens, lengths):
        """
        tokens:  (batch, seq_len) right-padded word ids
        lengths: (batch,) number of real words, each at least 1
        returns: (batch, seq_len, num_tags) emission scores
        """
        seq_len = tokens.size(1)
        embedded = self.dropout(self.embedding(tokens))
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, _ = self.lstm(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=seq_len)

        positions = torch.arange(seq_len, device=tokens.device)
        is_pad = positions.unsqueeze(0) >= lengths.to(tokens.device).unsqueeze(1)
        context, _ = self.attention(states, states, states, key_padding_mask=is_pad, need_weights=False)
        states = self.norm(states + self.dropout(context))
        return self.classifier(states)

    def loss(self, tokens, lengths, tags):
        scores = self(tokens, lengths)
        positions = torch.arange(tokens.size(1), device=tokens.device)
        valid = positions.unsqueeze(0) < lengths.to(tokens.device).unsqueeze(1)
        return F.cross_entropy(scores[valid], tags[valid])

    @torch.no_grad()
    def predict(self, tokens, lengths):
        was_training = self.training
        self.eval()
        best = self(tokens, lengths).argmax(dim=-1)
        self.train(was_training)
        return [row[:n].tolist() for row, n in zip(best, lengths.tolist())]
