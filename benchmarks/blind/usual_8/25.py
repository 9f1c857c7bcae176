import torch
import torch.nn as nn
import torch.nn.functional as F


class EncoderLayer(nn.Module):
    def __init__(self, dim, heads, ff_mult, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ln_attn = nn.LayerNorm(dim, eps=1e-12)
        self.ff = nn.Sequential(nn.Linear(dim, ff_mult * dim), nn.GELU(), nn.Linear(ff_mult * dim, dim))
        self.ln_ff = nn.LayerNorm(dim, eps=1e-12)

    def forward(self, x, attn_mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=self.dropout if self.training else 0.0
        )
        y = self.proj(y.transpose(1, 2).reshape(b, t, d))
        x = self.ln_attn(x + F.dropout(y, self.dropout, self.training))
        return self.ln_ff(x + F.dropout(self.ff(x), self.dropout, self.training))


class TinyBert(nn.Module):
    """A small BERT encoder. forward takes token ids (batch, seq), padded with pad_id."""

    def __init__(self, vocab_size=200, dim=64, heads=4, layers=2, max_len=128, pad_id=0,
                 ff_mult=4, dropout=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, dim)
        self.ln = nn.LayerNorm(dim, eps=1e-12)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads, ff_mult, dropout) for _ in range(layers)])
        self.dropout = dropout

    def forward(self, input_ids):
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.ln(self.tok(input_ids) + self.pos(positions))
        x = F.dropout(x, self.dropout, self.training)

        padding_mask = input_ids.eq(self.pad_id)
        attn_mask = padding_mask[:, None, None, :] if padding_mask.any() else None

        for layer in self.layers:
            x = layer(x, attn_mask)
        return x
