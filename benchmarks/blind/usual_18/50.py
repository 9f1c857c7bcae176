import torch
import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm_in = nn.LayerNorm(dim)
        self.to_qv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_k = nn.Linear(dim, dim // heads, bias=False)
        self.norm_out = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.drop = nn.Dropout(dropout)

    def forward(self, x, is_pad):
        B, T, D = x.shape
        y = self.norm_in(x)
        q, v = self.to_qv(y).view(B, T, 2, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        k = self.to_k(y).unsqueeze(1)  # one key head serves all query heads

        s = (q @ k.transpose(-1, -2)) * (D // self.heads) ** -0.5
        s = s.masked_fill(is_pad[:, None, None, :], float("-inf"))
        # an empty document has no key at all: its rows become zero
        a = torch.nan_to_num(s.softmax(dim=-1), nan=0.0)
        y = (self.drop(a) @ v).transpose(1, 2).reshape(B, T, D)
        x = x + y
        return x + self.drop(self.mlp(self.norm_out(x)))


class DocumentClassifier(nn.Module):
    """Classifies padded documents given as token ids (batch, length).

    Heads are concatenated and added to the stream without an output projection; the MLP that follows
    mixes them.
    """

    def __init__(self, vocab_size=1000, num_classes=4, dim=64, heads=4, depth=2,
                 max_len=256, pad_id=0, dropout=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.tok = nn.Embedding(vocab_size, dim, padding_idx=pad_id)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.blocks = nn.ModuleList([Encoder(dim, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def forward(self, ids):
        is_pad = ids.eq(self.pad_id)
        x = self.tok(ids) + self.pos[: ids.size(1)]
        for block in self.blocks:
            x = block(x, is_pad)
        x = self.norm(x).masked_fill(is_pad.unsqueeze(-1), 0.0)
        n = (~is_pad).sum(dim=1, keepdim=True).clamp(min=1)
        return self.head(x.sum(dim=1) / n)
