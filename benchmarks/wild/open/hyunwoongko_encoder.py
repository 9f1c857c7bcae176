"""The padding mask is unsqueezed on the query axis, so it blanks padded rows instead of padded keys.

hyunwoongko/transformer #40 (2025)
https://github.com/hyunwoongko/transformer/pull/40
"""
import math

import torch
from torch import nn


class ScaleDotProductAttention(nn.Module):
    """
    compute scale dot product attention

    Query : given sentence that we focused on (decoder)
    Key : every sentence to check relationship with Qeury(encoder)
    Value : every sentence same with Key (encoder)
    """

    def forward(self, q, k, v, mask=None):
        d_tensor = k.size(-1)
        score = (q @ k.transpose(2, 3)) / math.sqrt(d_tensor)  # scaled dot product
        if mask is not None:
            score = score.masked_fill(mask == 0, torch.finfo(score.dtype).min)
        score = score.softmax(dim=-1)
        return score @ v, score


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.n_head = n_head
        self.attention = ScaleDotProductAttention()
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_concat = nn.Linear(d_model, d_model)

    def split(self, tensor):
        batch_size, length, d_model = tensor.size()
        return tensor.view(batch_size, length, self.n_head, d_model // self.n_head).transpose(1, 2)

    def concat(self, tensor):
        batch_size, head, length, d_tensor = tensor.size()
        return tensor.transpose(1, 2).contiguous().view(batch_size, length, head * d_tensor)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.split(self.w_q(q)), self.split(self.w_k(k)), self.split(self.w_v(v))
        out, attention = self.attention(q, k, v, mask=mask)
        return self.w_concat(self.concat(out))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, ffn_hidden, n_head, drop_prob):
        super().__init__()
        self.attention = MultiHeadAttention(d_model=d_model, n_head=n_head)
        self.norm1 = nn.LayerNorm(d_model)
        self.dropout1 = nn.Dropout(p=drop_prob)
        self.ffn = nn.Sequential(nn.Linear(d_model, ffn_hidden), nn.ReLU(), nn.Linear(ffn_hidden, d_model))
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout2 = nn.Dropout(p=drop_prob)

    def forward(self, x, src_mask):
        _x = x
        x = self.norm1(self.dropout1(self.attention(q=x, k=x, v=x, mask=src_mask)) + _x)
        return self.norm2(self.dropout2(self.ffn(x)) + x)


class _EncoderBase(nn.Module):
    def __init__(self, src_pad_idx, enc_voc_size, max_len, d_model, ffn_hidden, n_head, n_layers, drop_prob=0.1):
        super().__init__()
        self.src_pad_idx = src_pad_idx
        self.tok_emb = nn.Embedding(enc_voc_size, d_model)
        self.pos_emb = nn.Embedding(max_len, d_model)
        self.layers = nn.ModuleList([EncoderLayer(d_model, ffn_hidden, n_head, drop_prob) for _ in range(n_layers)])

    def forward(self, src):
        """src: token ids [batch, length]; positions equal to src_pad_idx are padding."""
        src_mask = self.make_src_mask(src)
        x = self.tok_emb(src) + self.pos_emb(torch.arange(src.size(1), device=src.device))
        for layer in self.layers:
            x = layer(x, src_mask)
        return x


def broken() -> nn.Module:
    class Encoder(_EncoderBase):
        def make_src_mask(self, src):
            src_mask = (src != self.src_pad_idx).unsqueeze(1).unsqueeze(3)
            return src_mask

    torch.manual_seed(0)
    return Encoder(0, 40, 32, 32, 64, 4, 2)


def fixed() -> nn.Module:
    class Encoder(_EncoderBase):
        def make_src_mask(self, src):
            src_mask = (src != self.src_pad_idx).unsqueeze(1).unsqueeze(2)
            return src_mask

    torch.manual_seed(0)
    return Encoder(0, 40, 32, 32, 64, 4, 2)


def example() -> tuple[tuple, dict]:
    return (torch.tensor([[5, 7, 9, 3, 21, 14], [8, 11, 2, 0, 0, 0]]),), {}
