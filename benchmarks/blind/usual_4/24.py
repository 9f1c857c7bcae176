import math

import torch
from torch import nn


class BertEmbeddings(nn.Module):
    def __init__(self, vocab_size, hidden_size, max_position, pad_token_id, dropout):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=pad_token_id)
        self.position_embeddings = nn.Embedding(max_position, hidden_size)
        self.token_type_embeddings = nn.Embedding(2, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids, token_type_ids=None):
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        position_ids = torch.arange(input_ids.size(1), device=input_ids.device).unsqueeze(0)
        embeddings = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        embeddings = embeddings + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embeddings))


class BertAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def transpose_for_scores(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, extended_mask):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        probs = self.dropout(nn.functional.softmax(scores + extended_mask, dim=-1))
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)
        context = self.dropout(self.dense(context))
        return self.LayerNorm(context)


class BertLayer(nn.Module):
    def __init__(self, hidden_size, num_heads, intermediate_size, dropout):
        super().__init__()
        self.attention = BertAttention(hidden_size, num_heads, dropout)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden_states, extended_mask):
        attention_output = self.attention(hidden_states, extended_mask)
        layer_output = self.output(nn.functional.gelu(self.intermediate(attention_output)))
        return self.LayerNorm(self.dropout(layer_output) + attention_output)


class TinyBert(nn.Module):
    """Small BERT encoder. Returns the sequence of hidden states and the pooled [CLS] vector."""

    def __init__(self, vocab_size=1000, hidden_size=64, num_layers=2, num_heads=4,
                 intermediate_size=128, max_position=128, pad_token_id=0, dropout=0.1):
        super().__init__()
        self.pad_token_id = pad_token_id
        self.embeddings = BertEmbeddings(vocab_size, hidden_size, max_position, pad_token_id, dropout)
        self.layers = nn.ModuleList(
            [BertLayer(hidden_size, num_heads, intermediate_size, dropout) for _ in range(num_layers)]
        )
        self.pooler = nn.Linear(hidden_size, hidden_size)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = input_ids.ne(self.pad_token_id)
        hidden_states = self.embeddings(input_ids, token_type_ids)
        extended_mask = (1.0 - attention_mask[:, None, None, :].to(hidden_states.dtype)) * -10000.0
        for layer in self.layers:
            hidden_states = layer(hidden_states, extended_mask)
        return hidden_states, torch.tanh(self.pooler(hidden_states[:, 0]))
