"""A small BERT, chapter 8."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class BertLayer(nn.Module):
    def __init__(self, dim, heads, ff, p):
        super().__init__()
        self.heads = heads
        self.p = p
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.ln1 = nn.LayerNorm(dim)
        self.ffn = nn.Sequential(nn.Linear(dim, ff), nn.GELU(), nn.Linear(ff, dim))
        self.ln2 = nn.LayerNorm(dim)
        self.drop = nn.Dropout(p)

    def forward(self, x, mask):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=self.p if self.training else 0.0)
        x = self.ln1(x + self.drop(self.out(y.transpose(1, 2).reshape(b, n, d))))
        return self.ln2(x + self.drop(self.ffn(x)))


class MiniBert(nn.Module):
    """Contextual embeddings for (batch, length) token ids."""

    def __init__(self, vocab_size=1000, dim=64, heads=4, layers=2, ff=128, max_len=128, pad_id=0, dropout=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, dim)
        self.ln = nn.LayerNorm(dim)
        self.layers = nn.ModuleList([BertLayer(dim, heads, ff, dropout) for _ in range(layers)])
        self._mask = None

    def attention_mask(self, ids):
        if self._mask is None or self._mask.size(0) != ids.size(0) or self._mask.size(-1) != ids.size(1):
            self._mask = (ids != self.pad_id)[:, None, None, :]
        return self._mask

    def forward(self, ids):
        mask = self.attention_mask(ids)
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        x = self.ln(x)
        for layer in self.layers:
            x = layer(x, mask)
        return x
