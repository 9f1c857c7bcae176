import torch
import torch.nn as nn


class TransformerBlock(nn.Module):
    """
    Transformer block for sequences of embeddings.

    Args:
        embed_dim: size of an embedding
        num_heads: number of attention heads
        ff_dim: hidden size of the feed-forward network
        rate: dropout rate

    Shape:
        x: (batch, seq_len, embed_dim) -> (batch, seq_len, embed_dim)
    """

    def __init__(self, embed_dim=64, num_heads=4, ff_dim=128, rate=0.1):
        super().__init__()
        self.att = nn.MultiheadAttention(embed_dim, num_heads, dropout=rate)
        self.ffn = nn.Sequential(
            nn.Linear(embed_dim, ff_dim),
            nn.ReLU(),
            nn.Linear(ff_dim, embed_dim),
        )
        self.layernorm1 = nn.LayerNorm(embed_dim)
        self.layernorm2 = nn.LayerNorm(embed_dim)
        self.dropout1 = nn.Dropout(rate)
        self.dropout2 = nn.Dropout(rate)

    def forward(self, x):
        attn_output, _ = self.att(x, x, x)
        out1 = self.layernorm1(x + self.dropout1(attn_output))
        ffn_output = self.ffn(out1)
        return self.layernorm2(out1 + self.dropout2(ffn_output))
