import torch
import torch.nn as nn


class AttentionClassifier(nn.Module):
    """
    Text classifier: embedding -> self-attention -> masked mean -> linear.

    nn.MultiheadAttention expects True at the positions to IGNORE, so the padding mask is
    used as it is there, and inverted for the mean. Every text has at least one token.
    """

    def __init__(self, vocab_size=1000, embed_dim=64, num_heads=4, num_classes=3, max_len=128, pad_id=0, dropout=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, embed_dim, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, embed_dim)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.norm = nn.LayerNorm(embed_dim)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(embed_dim, num_classes)

    def forward(self, ids):
        is_pad = ids.eq(self.pad_id)
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        x = self.drop(x)

        attended, _ = self.attn(x, x, x, key_padding_mask=is_pad, need_weights=False)
        x = self.norm(x + attended)

        lengths = (~is_pad).sum(dim=1, keepdim=True)
        x = x.masked_fill(is_pad.unsqueeze(-1), 0.0)
        return self.fc(x.sum(dim=1) / lengths)
