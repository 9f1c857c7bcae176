import torch
import torch.nn as nn


class TransformerBlock(nn.Module):
    """
    Pre-norm Transformer encoder block.

    Parameters
    ----------
    embed_dim : int
        Size of the token embeddings.
    num_heads : int
        Number of attention heads.
    mlp_ratio : float
        Hidden size of the MLP relative to ``embed_dim``.

    Input and output are of shape ``(batch_size, num_tokens, embed_dim)``.
    """

    def __init__(self, embed_dim=64, num_heads=4, mlp_ratio=4.0, dropout=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(embed_dim)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout)
        self.norm2 = nn.LayerNorm(embed_dim)
        hidden = int(embed_dim * mlp_ratio)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, embed_dim),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        normed = self.norm1(x)
        attn_out, _ = self.attn(normed, normed, normed, need_weights=False)
        x = x + attn_out
        x = x + self.mlp(self.norm2(x))
        return x
