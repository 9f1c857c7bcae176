import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class BertEmbedding(nn.Module):
    def __init__(self, vocab_size, d_model, max_len, n_segments, dropout):
        super().__init__()
        self.tok_embed = nn.Embedding(vocab_size, d_model, padding_idx=0)
        self.pos_embed = nn.Embedding(max_len, d_model)
        self.seg_embed = nn.Embedding(n_segments, d_model)
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, seg):
        pos = torch.arange(x.size(1), device=x.device).unsqueeze(0).expand_as(x)
        return self.dropout(self.norm(self.tok_embed(x) + self.pos_embed(pos) + self.seg_embed(seg)))


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.d_k = d_model // n_heads
        self.W_Q = nn.Linear(d_model, d_model)
        self.W_K = nn.Linear(d_model, d_model)
        self.W_V = nn.Linear(d_model, d_model)
        self.linear = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attn_mask):
        batch_size, seq_len, d_model = x.size()
        q_s = self.W_Q(x).view(batch_size, seq_len, self.n_heads, self.d_k).transpose(1, 2)
        k_s = self.W_K(x).view(batch_size, seq_len, self.n_heads, self.d_k).transpose(1, 2)
        v_s = self.W_V(x).view(batch_size, seq_len, self.n_heads, self.d_k).transpose(1, 2)

        scores = torch.matmul(q_s, k_s.transpose(-1, -2)) / math.sqrt(self.d_k)
        scores = scores.masked_fill(attn_mask, -1e9)
        attn = self.dropout(F.softmax(scores, dim=-1))
        context = torch.matmul(attn, v_s)
        context = context.contiguous().view(batch_size, seq_len, d_model)
        return self.linear(context)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, n_heads, d_ff, dropout):
        super().__init__()
        self.enc_self_attn = MultiHeadAttention(d_model, n_heads, dropout)
        self.fc1 = nn.Linear(d_model, d_ff)
        self.fc2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, attn_mask):
        x = self.norm1(x + self.dropout(self.enc_self_attn(x, attn_mask)))
        return self.norm2(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class BERT(nn.Module):
    def __init__(self, vocab_size=500, d_model=64, n_layers=2, n_heads=4, d_ff=256, max_len=128, n_segments=2, dropout=0.1):
        super().__init__()
        self.embedding = BertEmbedding(vocab_size, d_model, max_len, n_segments, dropout)
        self.layers = nn.ModuleList([EncoderLayer(d_model, n_heads, d_ff, dropout) for _ in range(n_layers)])
        self.pooler = nn.Linear(d_model, d_model)
        self.classifier = nn.Linear(d_model, 2)
        self.mlm_transform = nn.Linear(d_model, d_model)
        self.mlm_norm = nn.LayerNorm(d_model)
        self.mlm_bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, input_ids, segment_ids=None):
        """Returns the logits of the masked words (B, T, vocab) and of next sentence prediction (B, 2)."""
        if segment_ids is None:
            segment_ids = torch.zeros_like(input_ids)
        attn_mask = (input_ids == 0)[:, None, None, :]  # True is masked
        output = self.embedding(input_ids, segment_ids)
        for layer in self.layers:
            output = layer(output, attn_mask)

        logits_clsf = self.classifier(torch.tanh(self.pooler(output[:, 0])))
        h = self.mlm_norm(F.gelu(self.mlm_transform(output)))
        logits_lm = h @ self.embedding.tok_embed.weight.t() + self.mlm_bias
        return logits_lm, logits_clsf
