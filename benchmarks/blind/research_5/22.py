import math

import torch
import torch.nn as nn


class QueryAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.dense = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def _split(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, hidden_states, encoder_hidden_states=None):
        source = encoder_hidden_states if encoder_hidden_states is not None else hidden_states
        bsz = source.size(0)

        query_layer = self._split(self.query(hidden_states))
        key_layer = self._split(self.key(hidden_states))
        value_layer = self._split(self.value(hidden_states))

        scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(self.head_dim)
        probs = self.dropout(scores.softmax(dim=-1))
        context = torch.matmul(probs, value_layer).permute(0, 2, 1, 3).reshape(bsz, -1, hidden_states.size(-1))
        return self.norm(hidden_states + self.dropout(self.dense(context)))


class QFormerLayer(nn.Module):
    def __init__(self, dim, num_heads, dropout, with_cross):
        super().__init__()
        self.attention = QueryAttention(dim, num_heads, dropout)
        self.crossattention = QueryAttention(dim, num_heads, dropout) if with_cross else None
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x, image_states):
        x = self.attention(x)
        if self.crossattention is not None:
            x = self.crossattention(x, encoder_hidden_states=image_states)
        return self.norm(x + self.fc2(nn.functional.gelu(self.fc1(x))))


class QFormer(nn.Module):
    """A small set of learned queries that summarises image features for a language model.

    ``image_features`` is ``[B, P, vision_dim]``; the result is ``[B, num_queries, dim]``. Every
    second layer looks at the image.
    """

    def __init__(self, dim=64, num_heads=4, num_layers=2, num_queries=8, vision_dim=96, dropout=0.0):
        super().__init__()
        self.query_tokens = nn.Parameter(torch.randn(1, num_queries, dim) * 0.02)
        self.vision_proj = nn.Linear(vision_dim, dim)
        self.vision_norm = nn.LayerNorm(dim)
        self.norm = nn.LayerNorm(dim, eps=1e-12)
        self.layers = nn.ModuleList([QFormerLayer(dim, num_heads, dropout, i % 2 == 0) for i in range(num_layers)])

    def forward(self, image_features):
        image_states = self.vision_norm(self.vision_proj(image_features))
        x = self.norm(self.query_tokens.expand(image_features.size(0), -1, -1))
        for layer in self.layers:
            x = layer(x, image_states)
        return x
