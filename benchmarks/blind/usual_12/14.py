import math

import torch
import torch.nn as nn


class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, extended_mask):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_size) + extended_mask
        probs = self.dropout(scores.softmax(dim=-1))
        return (probs @ v).permute(0, 2, 1, 3).flatten(-2)


class BertLayer(nn.Module):
    """Post-norm: the residual is added first and the sum is normalised, as in the original BERT."""

    def __init__(self, hidden_size, num_heads, intermediate_size, dropout):
        super().__init__()
        self.attention = BertSelfAttention(hidden_size, num_heads, dropout)
        self.attention_out = nn.Linear(hidden_size, hidden_size)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.output_norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, extended_mask):
        a = self.dropout(self.attention_out(self.attention(x, extended_mask)))
        x = self.attention_norm(x + a)
        f = self.dropout(self.output(nn.functional.gelu(self.intermediate(x))))
        return self.output_norm(x + f)


class TinyBertModel(nn.Module):
    def __init__(
        self,
        vocab_size=100,
        hidden_size=48,
        num_layers=2,
        num_heads=4,
        intermediate_size=96,
        max_position=64,
        type_vocab_size=2,
        pad_token_id=0,
        dropout=0.1,
    ):
        super().__init__()
        self.pad_token_id = pad_token_id
        self.word = nn.Embedding(vocab_size, hidden_size, padding_idx=pad_token_id)
        self.position = nn.Embedding(max_position, hidden_size)
        self.token_type = nn.Embedding(type_vocab_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(
            BertLayer(hidden_size, num_heads, intermediate_size, dropout) for _ in range(num_layers)
        )
        self.pooler = nn.Linear(hidden_size, hidden_size)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = (input_ids != self.pad_token_id).long()
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        pos = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.word(input_ids) + self.position(pos)[None] + self.token_type(token_type_ids)
        x = self.dropout(self.norm(x))
        ext = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        for layer in self.layers:
            x = layer(x, ext)
        return x, torch.tanh(self.pooler(x[:, 0]))
