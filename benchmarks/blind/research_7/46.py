import torch
import torch.nn as nn


class LearnedPositionalEmbedding(nn.Embedding):
    """Positions start at ``padding_idx + 1``; padding keeps the (zero) row ``padding_idx``."""

    def __init__(self, max_positions, dim, padding_idx):
        super().__init__(max_positions + padding_idx + 1, dim, padding_idx)

    def forward(self, tokens):
        real = tokens.ne(self.padding_idx).long()
        positions = real.cumsum(dim=1) * real + self.padding_idx
        return super().forward(positions)


class EncoderLayer(nn.Module):
    def __init__(self, dim, num_heads, ffn_dim, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.scaling = (dim // num_heads) ** -0.5
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.out_proj = nn.Linear(dim, dim)
        self.self_attn_layer_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, dim)
        self.final_layer_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, padding):
        B, T, D = x.shape

        def shape(t):
            return t.view(B, T, self.num_heads, -1).transpose(1, 2)

        q = shape(self.q_proj(x) * self.scaling)
        k, v = shape(self.k_proj(x)), shape(self.v_proj(x))
        scores = (q @ k.transpose(-1, -2)).masked_fill(padding[:, None, None, :], float("-inf"))
        y = (self.dropout(scores.softmax(dim=-1)) @ v).transpose(1, 2).reshape(B, T, D)

        x = self.self_attn_layer_norm(x + self.dropout(self.out_proj(y)))
        h = self.fc2(self.dropout(torch.nn.functional.gelu(self.fc1(x))))
        return self.final_layer_norm(x + self.dropout(h))


class SentenceEncoder(nn.Module):
    """Post-norm encoder in the manner of BART/RoBERTa.

    tokens: [B, T] ids with ``padding_idx`` as padding, on either side. Padded positions of
    the output are zero.
    """

    def __init__(self, vocab_size=200, dim=64, num_heads=4, num_layers=2, ffn_dim=128,
                 max_positions=128, padding_idx=1, dropout=0.0):
        super().__init__()
        self.padding_idx = padding_idx
        self.embed_tokens = nn.Embedding(vocab_size, dim, padding_idx)
        self.embed_positions = LearnedPositionalEmbedding(max_positions, dim, padding_idx)
        self.layernorm_embedding = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(dim, num_heads, ffn_dim, dropout) for _ in range(num_layers))

    def forward(self, tokens):
        padding = tokens.eq(self.padding_idx)
        x = self.embed_tokens(tokens) + self.embed_positions(tokens)
        x = self.dropout(self.layernorm_embedding(x))
        for layer in self.layers:
            x = layer(x, padding)
        return x.masked_fill(padding.unsqueeze(-1), 0.0)
