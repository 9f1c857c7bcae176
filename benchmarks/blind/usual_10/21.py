import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim)
        self.ln2 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, allowed):
        b, t, c = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.ff(self.ln2(x))


class GPTSentimentClassifier(nn.Module):
    """Small causal transformer; the class is predicted from the last token of the review.

    Args:
        vocab_size: size of the vocabulary.
        pad_id: id that fills short reviews up at the end (the collate function pads on the right).

    ``forward`` takes ids of shape (batch, length) and returns logits of shape (batch, num_classes).
    """

    def __init__(self, vocab_size=1000, dim=64, heads=4, depth=2, num_classes=2, max_len=256, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
        self.pos = nn.Embedding(max_len, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, ids):
        b, t = ids.shape
        keep = ids.ne(self.pad_id)
        causal = torch.ones(t, t, dtype=torch.bool, device=ids.device).tril()
        allowed = causal[None, None] & keep[:, None, None, :]

        x = self.tok(ids) + self.pos(torch.arange(t, device=ids.device))
        for block in self.blocks:
            x = block(x, allowed)
        x = self.norm(x)
        return self.head(x[:, -1])
