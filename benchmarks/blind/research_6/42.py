import torch
import torch.nn as nn


def create_position_ids(input_ids, padding_idx):
    """Positions of real tokens start at ``padding_idx + 1``; padding keeps ``padding_idx``."""
    mask = input_ids.ne(padding_idx).long()
    return torch.cumsum(mask, dim=1) * mask + padding_idx


class RobertaLikeEncoder(nn.Module):
    """Embeddings and post-norm layers with the fairseq numbering of positions, therefore
    the position table has ``max_len + padding_idx + 1`` rows."""

    def __init__(
        self, vocab_size=500, dim=64, num_heads=4, num_layers=2, max_len=64, padding_idx=1, dropout=0.1
    ):
        super().__init__()
        self.padding_idx = padding_idx
        self.word_embeddings = nn.Embedding(vocab_size, dim, padding_idx=padding_idx)
        self.position_embeddings = nn.Embedding(max_len + padding_idx + 1, dim, padding_idx=padding_idx)
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.dropout = nn.Dropout(dropout)
        self.attn = nn.ModuleList(
            [nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True) for _ in range(num_layers)]
        )
        self.attn_norm = nn.ModuleList([nn.LayerNorm(dim) for _ in range(num_layers)])
        self.ff = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(num_layers)]
        )
        self.ff_norm = nn.ModuleList([nn.LayerNorm(dim) for _ in range(num_layers)])

    def forward(self, input_ids):
        pad = input_ids.eq(self.padding_idx)
        x = self.word_embeddings(input_ids)
        x = x + self.position_embeddings(create_position_ids(input_ids, self.padding_idx))
        x = self.dropout(self.norm(x))

        for attn, n1, ff, n2 in zip(self.attn, self.attn_norm, self.ff, self.ff_norm):
            y, _ = attn(x, x, x, key_padding_mask=pad, need_weights=False)
            x = n1(x + self.dropout(y))
            x = n2(x + self.dropout(ff(x)))
        return x.masked_fill(pad.unsqueeze(-1), 0.0)
