import math

import torch
import torch.nn as nn


class MHA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))

    def forward(self, x, mem, allow):
        B, Tq, d = x.shape
        q = self.q(x).view(B, Tq, self.h, -1).transpose(1, 2)
        k = self.k(mem).view(B, mem.size(1), self.h, -1).transpose(1, 2)
        v = self.v(mem).view(B, mem.size(1), self.h, -1).transpose(1, 2)
        s = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        s = s.masked_fill(~allow, -1e9)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(B, Tq, d))


class PostNorm(nn.Module):
    """LayerNorm(x + sublayer(x)), the order of the original paper."""

    def __init__(self, d, p):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(d), nn.Dropout(p)

    def forward(self, x, y):
        return self.norm(x + self.drop(y))


def ffn(d, f):
    return nn.Sequential(nn.Linear(d, f), nn.ReLU(), nn.Linear(f, d))


class EncLayer(nn.Module):
    def __init__(self, d, h, f, p):
        super().__init__()
        self.att, self.ff = MHA(d, h), ffn(d, f)
        self.add1, self.add2 = PostNorm(d, p), PostNorm(d, p)

    def forward(self, x, allow):
        x = self.add1(x, self.att(x, x, allow))
        return self.add2(x, self.ff(x))


class DecLayer(nn.Module):
    def __init__(self, d, h, f, p):
        super().__init__()
        self.att, self.cross, self.ff = MHA(d, h), MHA(d, h), ffn(d, f)
        self.add1, self.add2, self.add3 = PostNorm(d, p), PostNorm(d, p), PostNorm(d, p)

    def forward(self, x, mem, allow_self, allow_mem):
        x = self.add1(x, self.att(x, x, allow_self))
        x = self.add2(x, self.cross(x, mem, allow_mem))
        return self.add3(x, self.ff(x))


class Seq2SeqTransformer(nn.Module):
    """Post-norm encoder-decoder, hence without a final LayerNorm. One embedding matrix serves source,
    target and output; it is initialised with std d^-0.5 and scaled up by sqrt(d) on the input side."""

    def __init__(self, vocab=1000, d=64, h=4, f=128, layers=2, p=0.1, pad=0, max_len=256):
        super().__init__()
        self.d, self.pad = d, pad
        self.emb = nn.Embedding(vocab, d)
        nn.init.normal_(self.emb.weight, std=d ** -0.5)
        pos = torch.arange(max_len).unsqueeze(1)
        freq = torch.exp(-math.log(10000.0) * torch.arange(0, d, 2) / d)
        pe = torch.stack([torch.sin(pos * freq), torch.cos(pos * freq)], dim=-1).flatten(1)
        self.register_buffer("pe", pe, persistent=False)
        self.drop = nn.Dropout(p)
        self.enc = nn.ModuleList([EncLayer(d, h, f, p) for _ in range(layers)])
        self.dec = nn.ModuleList([DecLayer(d, h, f, p) for _ in range(layers)])

    def embed(self, ids):
        return self.drop(self.emb(ids) * math.sqrt(self.d) + self.pe[: ids.size(1)])

    def forward(self, src, tgt):
        """src: (B, S) ids, tgt: (B, T) ids starting with BOS. Returns logits (B, T, vocab)."""
        src_ok = (src != self.pad)[:, None, None, :]
        T = tgt.size(1)
        causal = torch.ones(T, T, dtype=torch.bool, device=tgt.device).tril()
        tgt_ok = (tgt != self.pad)[:, None, None, :] & causal

        mem = self.embed(src)
        for layer in self.enc:
            mem = layer(mem, src_ok)
        x = self.embed(tgt)
        for layer in self.dec:
            x = layer(x, mem, tgt_ok, src_ok)
        return x @ self.emb.weight.t()
