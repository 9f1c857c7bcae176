import math

import torch
import torch.nn as nn


class Attention(nn.Module):
    def __init__(self, d_model, n_head, dropout):
        super().__init__()
        self.n_head = n_head
        self.d_k = d_model // n_head
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, kv, mask):
        def split(t):
            return t.view(t.size(0), t.size(1), self.n_head, self.d_k).transpose(1, 2)

        query, key, value = split(self.w_q(q)), split(self.w_k(kv)), split(self.w_v(kv))
        score = query @ key.transpose(-1, -2) / math.sqrt(self.d_k)
        score = score.masked_fill(mask == 0, -1e9)
        out = self.dropout(score.softmax(-1)) @ value
        return self.w_o(out.transpose(1, 2).reshape(q.shape))


class Layer(nn.Module):
    def __init__(self, d_model, n_head, dropout, cross):
        super().__init__()
        self.self_attn = Attention(d_model, n_head, dropout)
        self.cross_attn = Attention(d_model, n_head, dropout) if cross else None
        self.ffn = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.ReLU(), nn.Linear(4 * d_model, d_model))
        self.norms = nn.ModuleList(nn.LayerNorm(d_model) for _ in range(3 if cross else 2))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norms[0](x + self.dropout(self.self_attn(x, x, mask)))
        if self.cross_attn is not None:
            x = self.norms[1](x + self.dropout(self.cross_attn(x, memory, memory_mask)))
        return self.norms[-1](x + self.dropout(self.ffn(x)))


class Seq2SeqTransformer(nn.Module):
    """Encoder-decoder Transformer for translation; returns logits (batch, tgt_len, tgt_vocab)."""

    def __init__(self, src_vocab=1000, tgt_vocab=1000, d_model=128, n_head=4, n_layers=2,
                 pad_idx=0, max_len=256, dropout=0.1):
        super().__init__()
        self.pad_idx = pad_idx
        self.d_model = d_model
        self.src_emb = nn.Embedding(src_vocab, d_model, padding_idx=pad_idx)
        self.tgt_emb = nn.Embedding(tgt_vocab, d_model, padding_idx=pad_idx)
        pos = torch.arange(max_len).unsqueeze(1).float()
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(pos * div), torch.cos(pos * div)
        self.register_buffer("pe", pe)
        self.encoder = nn.ModuleList(Layer(d_model, n_head, dropout, False) for _ in range(n_layers))
        self.decoder = nn.ModuleList(Layer(d_model, n_head, dropout, True) for _ in range(n_layers))
        self.generator = nn.Linear(d_model, tgt_vocab)

    def make_src_mask(self, src):
        return (src != self.pad_idx)[:, None, None, :]

    def make_tgt_mask(self, tgt):
        pad_mask = (tgt != self.pad_idx)[:, None, None, :]
        t = tgt.size(1)
        sub_mask = torch.tril(torch.ones(t, t, device=tgt.device)).bool()
        return pad_mask | sub_mask

    def embed(self, emb, ids):
        return emb(ids) * math.sqrt(self.d_model) + self.pe[: ids.size(1)]

    def forward(self, src, tgt):
        src_mask, tgt_mask = self.make_src_mask(src), self.make_tgt_mask(tgt)
        memory = self.embed(self.src_emb, src)
        for layer in self.encoder:
            memory = layer(memory, src_mask)
        x = self.embed(self.tgt_emb, tgt)
        for layer in self.decoder:
            x = layer(x, tgt_mask, memory, src_mask)
        return self.generator(x)
