import torch
import torch.nn as nn


class DecoderOnlyBlock(nn.Module):
    """Pre-norm causal transformer block around ``nn.MultiheadAttention``.

    Each position sees itself and the positions before it.
    """

    def __init__(self, embed_dim=64, num_heads=4, ff_dim=256, dropout=0.1, max_len=512):
        super().__init__()
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.ln_1 = nn.LayerNorm(embed_dim)
        self.ln_2 = nn.LayerNorm(embed_dim)
        self.ff = nn.Sequential(
            nn.Linear(embed_dim, ff_dim),
            nn.GELU(),
            nn.Linear(ff_dim, embed_dim),
            nn.Dropout(dropout),
        )
        self.register_buffer("causal_mask", torch.tril(torch.ones(max_len, max_len)), persistent=False)

    def forward(self, x):
        """x: (batch, seq, embed_dim)"""
        seq_len = x.size(1)
        h = self.ln_1(x)
        attn_out, _ = self.attn(
            h, h, h,
            attn_mask=self.causal_mask[:seq_len, :seq_len],
            need_weights=False,
        )
        x = x + attn_out
        x = x + self.ff(self.ln_2(x))
        return x
