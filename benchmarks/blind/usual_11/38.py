import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttentionLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.d_k = d_model // num_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)
        self.fc1 = nn.Linear(d_model, d_ff)
        self.fc2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def attend(self, x, pad_mask):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.num_heads, self.d_k).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        scores = scores.masked_fill(pad_mask[:, None, None, :], -1e9)
        out = self.dropout(F.softmax(scores, dim=-1)) @ v
        return self.out(out.transpose(1, 2).reshape(b, n, c))

    def forward(self, x, pad_mask):
        x = self.norm1(x + self.dropout(self.attend(x, pad_mask)))
        return self.norm2(x + self.dropout(self.fc2(F.relu(self.fc1(x)))))


class SentimentTransformer(nn.Module):
    """
    Sentence classifier: embeddings, a small encoder, mean over the words of the sentence, linear layer.

    text: (batch, seq_len) token ids, shorter sentences are filled up with ``pad_idx``.
    Returns logits (batch, num_classes).
    """

    def __init__(
        self,
        vocab_size=1000,
        d_model=64,
        num_heads=4,
        num_layers=2,
        d_ff=128,
        num_classes=2,
        max_len=256,
        pad_idx=1,
        dropout=0.1,
    ):
        super().__init__()
        self.pad_idx = pad_idx
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=pad_idx)
        self.position = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList(
            [SelfAttentionLayer(d_model, num_heads, d_ff, dropout) for _ in range(num_layers)]
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(d_model, num_classes)

    def forward(self, text):
        pad_mask = text == self.pad_idx
        positions = torch.arange(text.size(1), device=text.device)
        x = self.dropout(self.embedding(text) + self.position(positions))
        for layer in self.layers:
            x = layer(x, pad_mask)
        pooled = x.mean(dim=1)
        return self.classifier(self.dropout(pooled))
