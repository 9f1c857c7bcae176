import torch
import torch.nn as nn


class AttentiveTextClassifier(nn.Module):
    """BiGRU encoder + additive self-attention pooling + linear classifier."""

    def __init__(self, vocab_size=1000, embed_dim=64, hidden_dim=32, num_classes=4, pad_idx=0):
        super().__init__()
        self.pad_idx = pad_idx
        self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_idx)
        self.encoder = nn.GRU(embed_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.att_proj = nn.Linear(2 * hidden_dim, 2 * hidden_dim)
        self.att_score = nn.Linear(2 * hidden_dim, 1, bias=False)
        self.fc = nn.Linear(2 * hidden_dim, num_classes)

    def pool(self, h, mask):
        u = torch.tanh(self.att_proj(h))          # (B, T, 2H)
        scores = self.att_score(u)                # (B, T, 1)
        scores = scores.masked_fill(~mask.unsqueeze(-1), -1e9)
        alpha = torch.softmax(scores, dim=-1)
        return (alpha * h).sum(dim=1), alpha.squeeze(-1)

    def forward(self, token_ids, return_attention=False):
        mask = token_ids.ne(self.pad_idx)
        h, _ = self.encoder(self.embedding(token_ids))
        pooled, alpha = self.pool(h, mask)
        logits = self.fc(pooled)
        if return_attention:
            return logits, alpha
        return logits
