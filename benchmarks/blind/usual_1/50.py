import math

import torch
import torch.nn as nn


class EncoderLayer(nn.Module):
    def __init__(self, d_model, nhead, d_ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, src_pad):
        y, _ = self.self_attn(x, x, x, key_padding_mask=src_pad, need_weights=False)
        x = self.norm1(x + self.dropout(y))
        return self.norm2(x + self.dropout(self.ff(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, nhead, d_ff, dropout):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.cross_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_ff, d_model))
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.norm3 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, y, memory, future, src_pad):
        z, _ = self.self_attn(y, y, y, attn_mask=future, need_weights=False)
        y = self.norm1(y + self.dropout(z))
        z, _ = self.cross_attn(y, memory, memory, key_padding_mask=src_pad, need_weights=False)
        y = self.norm2(y + self.dropout(z))
        return self.norm3(y + self.dropout(self.ff(y)))


class TranslationTransformer(nn.Module):
    """Encoder-decoder Transformer (post-norm), sequence first inside, as the attention modules expect.

    src: (S, B) and tgt: (T, B) token ids, padded at the end with pad_id. Returns logits (T, B, vocab).

    The decoder has no padding mask of its own: target padding comes after the real tokens, where the
    causal mask already hides it from them, and the loss skips the padded outputs.
    """

    def __init__(self, src_vocab=300, tgt_vocab=320, d_model=64, nhead=4, d_ff=128, num_layers=2,
                 dropout=0.1, max_len=256, pad_id=0):
        super().__init__()
        self.pad_id = pad_id
        self.embed_scale = math.sqrt(d_model)
        self.src_embed = nn.Embedding(src_vocab, d_model)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model)
        nn.init.normal_(self.src_embed.weight, std=d_model ** -0.5)
        nn.init.normal_(self.tgt_embed.weight, std=d_model ** -0.5)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(EncoderLayer(d_model, nhead, d_ff, dropout) for _ in range(num_layers))
        self.decoder = nn.ModuleList(DecoderLayer(d_model, nhead, d_ff, dropout) for _ in range(num_layers))
        self.generator = nn.Linear(d_model, tgt_vocab, bias=False)
        self.generator.weight = self.tgt_embed.weight

        pos = torch.arange(max_len).float()[:, None]
        div = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(pos * div)
        pe[:, 0, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe, persistent=False)

    def _embed(self, table, ids):
        return self.dropout(table(ids) * self.embed_scale + self.pe[: ids.size(0)])

    def forward(self, src, tgt):
        # in nn.MultiheadAttention True means "do not look here"; the padding mask is (B, S) in any layout
        src_pad = (src == self.pad_id).t()
        T = tgt.size(0)
        future = torch.ones(T, T, dtype=torch.bool, device=tgt.device).triu(1)

        memory = self._embed(self.src_embed, src)
        for layer in self.encoder:
            memory = layer(memory, src_pad)

        y = self._embed(self.tgt_embed, tgt)
        for layer in self.decoder:
            y = layer(y, memory, future, src_pad)
        return self.generator(y)
