import torch
import torch.nn as nn


class TokenSelfAttention(nn.Module):
    def __init__(self, dim, num_heads, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.to_qkv = nn.Linear(dim, 3 * dim)
        self.to_out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        n, t, d = x.shape
        q, k, v = self.to_qkv(x).view(n, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / self.head_dim ** 0.5
        scores = scores.masked_fill(~mask[:, None, :, None], -1e9)
        out = self.dropout(scores.softmax(dim=-1)) @ v
        return self.to_out(out.transpose(1, 2).reshape(n, t, d))


class AdditivePooling(nn.Module):
    def __init__(self, dim, attn_dim):
        super().__init__()
        self.proj = nn.Linear(dim, attn_dim)
        self.context = nn.Linear(attn_dim, 1, bias=False)

    def forward(self, x, mask):
        score = self.context(torch.tanh(self.proj(x))).squeeze(-1)
        score = score.masked_fill(~mask, -1e9)
        weight = score.softmax(dim=-1)
        return torch.einsum("nt,ntd->nd", weight, x)


class HierarchicalDocumentEncoder(nn.Module):
    """Words -> sentence vectors -> document vector.

    Args:
        words: (batch, sentences, words, dim)
        word_mask: bool (batch, sentences, words), True for words. Sentences without words are padding.
    """

    def __init__(self, dim=64, num_heads=4, attn_dim=32, dropout=0.1):
        super().__init__()
        self.word_norm = nn.LayerNorm(dim)
        self.word_attn = TokenSelfAttention(dim, num_heads, dropout)
        self.word_pool = AdditivePooling(dim, attn_dim)
        self.sent_norm = nn.LayerNorm(dim)
        self.sent_attn = TokenSelfAttention(dim, num_heads, dropout)
        self.sent_pool = AdditivePooling(dim, attn_dim)

    def forward(self, words, word_mask):
        b, s, w, d = words.shape
        x = words.reshape(b * s, w, d)
        m = word_mask.reshape(b * s, w)
        x = x + self.word_attn(self.word_norm(x), m)
        sents = self.word_pool(x, m).reshape(b, s, d)

        sent_mask = word_mask.any(dim=-1)
        sents = sents + self.sent_attn(self.sent_norm(sents), sent_mask)
        return self.sent_pool(sents, sent_mask)
