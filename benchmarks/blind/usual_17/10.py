import math

import torch
import torch.nn as nn


class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_heads, attn_dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attn_dropout)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.num_heads, self.head_size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head_size)
        if attention_mask is not None:
            scores = scores + attention_mask
        probs = self.dropout(nn.functional.softmax(scores, dim=-1))
        ctx = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        return ctx.view(*ctx.shape[:2], -1), probs


class BertMini(nn.Module):
    """Two post-norm BERT layers on token ids.

    ``attention_mask`` is 1 for tokens, 0 for padding, or None (derived from pad_token_id).
    """

    def __init__(self, vocab_size=1000, hidden_size=64, num_layers=2, num_heads=4,
                 intermediate_size=128, max_position=128, pad_token_id=0, dropout=0.1):
        super().__init__()
        self.pad_token_id = pad_token_id
        self.word = nn.Embedding(vocab_size, hidden_size, padding_idx=pad_token_id)
        self.position = nn.Embedding(max_position, hidden_size)
        self.token_type = nn.Embedding(2, hidden_size)
        self.emb_norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.drop = nn.Dropout(dropout)
        self.layers = nn.ModuleList()
        for _ in range(num_layers):
            self.layers.append(nn.ModuleDict({
                "attn": BertSelfAttention(hidden_size, num_heads, dropout),
                "attn_out": nn.Linear(hidden_size, hidden_size),
                "attn_norm": nn.LayerNorm(hidden_size, eps=1e-12),
                "inter": nn.Linear(hidden_size, intermediate_size),
                "out": nn.Linear(intermediate_size, hidden_size),
                "out_norm": nn.LayerNorm(hidden_size, eps=1e-12),
            }))

    def extend_mask(self, mask, dtype):
        return (1.0 - mask[:, None, None, :].to(dtype)) * torch.finfo(dtype).min

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        if attention_mask is None:
            attention_mask = input_ids.ne(self.pad_token_id)
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        pos = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.word(input_ids) + self.position(pos) + self.token_type(token_type_ids)
        x = self.drop(self.emb_norm(x))
        ext = self.extend_mask(attention_mask, x.dtype)
        for layer in self.layers:
            ctx, _ = layer["attn"](x, ext)
            x = layer["attn_norm"](x + self.drop(layer["attn_out"](ctx)))
            h = nn.functional.gelu(layer["inter"](x))
            x = layer["out_norm"](x + self.drop(layer["out"](h)))
        return x
