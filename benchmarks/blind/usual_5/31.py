import torch
import torch.nn as nn


class CaptionDecoderLayer(nn.Module):
    """Decoder layer around ``nn.MultiheadAttention``.

    The masks of this project are True (or 1) where there IS a token; PyTorch wants
    the opposite, hence the ``~`` below.
    """

    def __init__(self, dim=128, num_heads=4, dim_feedforward=256, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(
            nn.Linear(dim, dim_feedforward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim_feedforward, dim)
        )
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(3)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, words, regions, word_mask=None, region_mask=None):
        t = words.size(1)
        not_visible = ~torch.tril(torch.ones(t, t, dtype=torch.bool, device=words.device))
        word_pad = None if word_mask is None else ~word_mask.bool()
        region_pad = None if region_mask is None else ~region_mask.bool()

        h, _ = self.self_attn(words, words, words, attn_mask=not_visible,
                              key_padding_mask=word_pad, need_weights=False)
        words = self.norms[0](words + self.dropout(h))
        h, weights = self.cross_attn(words, regions, regions, key_padding_mask=region_pad,
                                     average_attn_weights=False)
        words = self.norms[1](words + self.dropout(h))
        words = self.norms[2](words + self.dropout(self.ffn(words)))
        return words, weights
