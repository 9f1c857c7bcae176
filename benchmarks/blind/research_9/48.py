from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class LearnedPositionalEmbedding(nn.Embedding):
    """Learned positions for padded batches. Row ``padding_idx`` stays zero and belongs to the padding;
    real tokens use the rows after it, so the table has ``max_positions + padding_idx + 1`` rows."""

    def __init__(self, max_positions: int, embedding_dim: int, padding_idx: int):
        super().__init__(max_positions + padding_idx + 1, embedding_dim, padding_idx)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        mask = input_ids.ne(self.padding_idx).int()
        positions = (torch.cumsum(mask, dim=1) * mask).long()
        return super().forward(positions)


class EncoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.attn_norm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, 4 * dim)
        self.fc2 = nn.Linear(4 * dim, dim)
        self.final_norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, keep):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        y = self.out(y.transpose(1, 2).reshape(b, t, c))
        x = self.attn_norm(x + self.dropout(y))
        return self.final_norm(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class RobertaStyleEncoder(nn.Module):
    """Text encoder of the RoBERTa kind: [B, T] ids -> [B, T, dim]."""

    def __init__(
        self,
        vocab_size: int = 500,
        dim: int = 64,
        heads: int = 4,
        layers: int = 2,
        max_positions: int = 128,
        padding_idx: int = 1,
        dropout: float = 0.1,
        embed_scale: Optional[float] = None,
    ):
        super().__init__()
        self.padding_idx = padding_idx
        self.embed_scale = embed_scale or 1.0
        self.embed_tokens = nn.Embedding(vocab_size, dim, padding_idx)
        self.embed_positions = LearnedPositionalEmbedding(max_positions, dim, padding_idx)
        self.emb_norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads, dropout) for _ in range(layers)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        keep = input_ids.ne(self.padding_idx)
        x = self.embed_scale * self.embed_tokens(input_ids) + self.embed_positions(input_ids)
        x = self.dropout(self.emb_norm(x))
        for layer in self.layers:
            x = layer(x, keep)
        return x
