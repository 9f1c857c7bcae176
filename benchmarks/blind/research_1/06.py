import numpy as np
import torch
import torch.nn as nn


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden_units, dropout_rate):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout1 = nn.Dropout(p=dropout_rate)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv1d(hidden_units, hidden_units, kernel_size=1)
        self.dropout2 = nn.Dropout(p=dropout_rate)

    def forward(self, inputs):
        outputs = self.dropout2(self.conv2(self.relu(self.dropout1(self.conv1(inputs.transpose(-1, -2))))))
        return outputs.transpose(-1, -2) + inputs


class SelfAttention(nn.Module):
    def __init__(self, hidden_units, num_heads, dropout_rate):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_units // num_heads
        self.Q_w = nn.Linear(hidden_units, hidden_units)
        self.K_w = nn.Linear(hidden_units, hidden_units)
        self.V_w = nn.Linear(hidden_units, hidden_units)
        self.dropout = nn.Dropout(p=dropout_rate)

    def forward(self, queries, keys, time_mask, attn_mask):
        b, n, d = queries.shape
        Q = self.Q_w(queries).view(b, n, self.num_heads, self.head_size).transpose(1, 2)
        K = self.K_w(keys).view(b, n, self.num_heads, self.head_size).transpose(1, 2)
        V = self.V_w(keys).view(b, n, self.num_heads, self.head_size).transpose(1, 2)

        scores = Q @ K.transpose(-1, -2) / np.sqrt(self.head_size)
        scores = scores.masked_fill(attn_mask, -1e9)
        scores = scores.masked_fill(time_mask[:, None, None, :], -1e9)
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return (weights @ V).transpose(1, 2).reshape(b, n, d)


class SASRec(nn.Module):
    """Self-attentive sequential recommendation. Item id 0 is padding (on the left)."""

    def __init__(self, item_num=1000, maxlen=50, hidden_units=64, num_blocks=2, num_heads=2, dropout_rate=0.2):
        super().__init__()
        self.item_num = item_num
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden_units)
        self.emb_dropout = nn.Dropout(p=dropout_rate)
        self.attention_layernorms = nn.ModuleList(nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks))
        self.attention_layers = nn.ModuleList(
            SelfAttention(hidden_units, num_heads, dropout_rate) for _ in range(num_blocks))
        self.forward_layernorms = nn.ModuleList(nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks))
        self.forward_layers = nn.ModuleList(
            PointWiseFeedForward(hidden_units, dropout_rate) for _ in range(num_blocks))
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)

    def forward(self, log_seqs):
        """log_seqs: LongTensor [batch, length] -> logits over all items for every position."""
        seqs = self.item_emb(log_seqs) * self.item_emb.embedding_dim ** 0.5
        length = log_seqs.size(1)
        seqs = seqs + self.pos_emb(torch.arange(length, device=log_seqs.device))
        seqs = self.emb_dropout(seqs)

        timeline_mask = log_seqs != 0
        seqs = seqs * timeline_mask.unsqueeze(-1)
        attention_mask = torch.ones(length, length, dtype=torch.bool, device=seqs.device).triu(1)

        for norm1, attn, norm2, ffn in zip(self.attention_layernorms, self.attention_layers,
                                           self.forward_layernorms, self.forward_layers):
            Q = norm1(seqs)
            seqs = Q + attn(Q, seqs, timeline_mask, attention_mask)
            seqs = ffn(norm2(seqs))
            seqs = seqs * timeline_mask.unsqueeze(-1)

        feats = self.last_layernorm(seqs)
        return feats @ self.item_emb.weight.t()
