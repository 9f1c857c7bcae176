import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=512):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        pos = torch.arange(max_len).float().unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe.unsqueeze(0))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        assert d_model % n_heads == 0
        self.h, self.d_k = n_heads, d_model // n_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, mask):
        """mask: bool, broadcastable to (B, Lq, Lk), True where attention is allowed."""
        B = query.size(0)
        q = self.w_q(query).view(B, -1, self.h, self.d_k).transpose(1, 2)
        k = self.w_k(key).view(B, -1, self.h, self.d_k).transpose(1, 2)
        v = self.w_v(value).view(B, -1, self.h, self.d_k).transpose(1, 2)
        energy = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.d_k)
        energy = energy.masked_fill(~mask.unsqueeze(1), torch.finfo(energy.dtype).min)
        p = self.dropout(F.softmax(energy, dim=-1))
        out = torch.matmul(p, v).transpose(1, 2).contiguous().view(B, -1, self.h * self.d_k)
        return self.w_o(out)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.norm1(x + self.dropout(self.attn(x, x, x, mask)))
        return self.norm2(x + self.dropout(self.ff(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.cross_attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, y, memory, tgt_mask, src_mask):
        y = self.norm1(y + self.dropout(self.self_attn(y, y, y, tgt_mask)))
        y = self.norm2(y + self.dropout(self.cross_attn(y, memory, memory, src_mask)))
        return self.norm3(y + self.dropout(self.ff(y)))


class TranslationTransformer(nn.Module):
    """Post-norm encoder-decoder ("Attention Is All You Need").

    ``src`` and ``tgt`` are right-padded ids; ``tgt`` starts with BOS and excludes the last
    token, the logits at step t predict token t + 1.
    """

    def __init__(self, src_vocab=8000, tgt_vocab=8000, d_model=128, n_heads=4, n_layers=2,
                 d_ff=512, dropout=0.1, max_len=512, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.d_model = d_model
        self.src_embed = nn.Embedding(src_vocab, d_model)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model)
        self.pos = PositionalEncoding(d_model, dropout, max_len)
        self.encoder = nn.ModuleList(EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers))
        self.decoder = nn.ModuleList(DecoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers))
        self.out = nn.Linear(d_model, tgt_vocab, bias=False)
        for emb in (self.src_embed, self.tgt_embed):
            nn.init.normal_(emb.weight, std=d_model ** -0.5)
        self.out.weight = self.tgt_embed.weight

    def encode(self, src):
        src_mask = src.ne(self.pad_id).unsqueeze(1)  # (B, 1, S)
        x = self.pos(self.src_embed(src) * math.sqrt(self.d_model))
        for layer in self.encoder:
            x = layer(x, src_mask)
        return x, src_mask

    def decode(self, tgt, memory, src_mask):
        T = tgt.size(1)
        causal = torch.ones(T, T, dtype=torch.bool, device=tgt.device).tril()
        tgt_mask = tgt.ne(self.pad_id).unsqueeze(1) & causal
        y = self.pos(self.tgt_embed(tgt) * math.sqrt(self.d_model))
        for layer in self.decoder:
            y = layer(y, memory, tgt_mask, src_mask)
        return self.out(y)

    def forward(self, src, tgt):
        memory, src_mask = self.encode(src)
        return self.decode(tgt, memory, src_mask)

    @torch.no_grad()
    def translate(self, src, bos_id=1, eos_id=2, max_len=64):
        """Greedy decoding; rows that finished early are filled with ``pad_id``."""
        was_training = self.training
        self.eval()
        memory, src_mask = self.encode(src)
        ys = src.new_full((src.size(0), 1), bos_id)
        done = torch.zeros(src.size(0), dtype=torch.bool, device=src.device)
        for _ in range(max_len - 1):
            logits = self.decode(ys, memory, src_mask)[:, -1]
            logits[:, self.pad_id] = float("-inf")
            nxt = logits.argmax(-1).masked_fill(done, self.pad_id)
            ys = torch.cat([ys, nxt.unsqueeze(1)], dim=1)
            done = done | nxt.eq(eos_id)
            if done.all():
                break
        self.train(was_training)
        return ys
