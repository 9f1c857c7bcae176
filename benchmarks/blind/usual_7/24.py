import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.heads = heads
        self.head_dim = embed_size // heads
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]
        values = self.values(values).reshape(N, value_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(N, key_len, self.heads, self.head_dim)
        queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys]) / (self.head_dim ** 0.5)
        energy = energy.masked_fill(~mask, float("-1e20"))
        attention = torch.softmax(energy, dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(N, query_len, -1)
        return self.fc_out(out)


class Layer(nn.Module):
    def __init__(self, embed_size, heads, expansion, cross=False):
        super().__init__()
        self.attention = SelfAttention(embed_size, heads)
        self.norm1 = nn.LayerNorm(embed_size)
        self.cross = SelfAttention(embed_size, heads) if cross else None
        self.norm_c = nn.LayerNorm(embed_size) if cross else None
        self.norm2 = nn.LayerNorm(embed_size)
        self.ff = nn.Sequential(
            nn.Linear(embed_size, expansion * embed_size), nn.ReLU(), nn.Linear(expansion * embed_size, embed_size)
        )

    def forward(self, x, mask, enc=None, enc_mask=None):
        x = self.norm1(x + self.attention(x, x, x, mask))
        if self.cross is not None:
            x = self.norm_c(x + self.cross(enc, enc, x, enc_mask))
        return self.norm2(x + self.ff(x))


class Transformer(nn.Module):
    def __init__(self, src_vocab_size=100, trg_vocab_size=100, src_pad_idx=0, trg_pad_idx=0, embed_size=64,
                 num_layers=2, forward_expansion=4, heads=4, max_length=100):
        super().__init__()
        self.src_pad_idx = src_pad_idx
        self.trg_pad_idx = trg_pad_idx
        self.src_tok = nn.Embedding(src_vocab_size, embed_size)
        self.src_pos = nn.Embedding(max_length, embed_size)
        self.trg_tok = nn.Embedding(trg_vocab_size, embed_size)
        self.trg_pos = nn.Embedding(max_length, embed_size)
        self.encoder = nn.ModuleList([Layer(embed_size, heads, forward_expansion) for _ in range(num_layers)])
        self.decoder = nn.ModuleList([Layer(embed_size, heads, forward_expansion, True) for _ in range(num_layers)])
        self.fc_out = nn.Linear(embed_size, trg_vocab_size)

    def make_src_mask(self, src):
        return (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)

    def make_trg_mask(self, trg):
        trg_len = trg.shape[1]
        pad_mask = (trg != self.trg_pad_idx).unsqueeze(1).unsqueeze(2)
        sub_mask = torch.tril(torch.ones(trg_len, trg_len, device=trg.device)).bool()
        return pad_mask | sub_mask

    def forward(self, src, trg):
        src_mask, trg_mask = self.make_src_mask(src), self.make_trg_mask(trg)
        enc = self.src_tok(src) + self.src_pos(torch.arange(src.shape[1], device=src.device))
        for layer in self.encoder:
            enc = layer(enc, src_mask)
        x = self.trg_tok(trg) + self.trg_pos(torch.arange(trg.shape[1], device=trg.device))
        for layer in self.decoder:
            x = layer(x, trg_mask, enc, src_mask)
        return self.fc_out(x)
