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


class CausalMultiHeadAttention(nn.Module):
    def __init__(self, hidden_units, num_heads, dropout_rate):
        super().__init__()
        self.Q_w = nn.Linear(hidden_units, hidden_units)
        self.K_w = nn.Linear(hidden_units, hidden_units)
        self.V_w = nn.Linear(hidden_units, hidden_units)
        self.dropout = nn.Dropout(p=dropout_rate)
        self.head_num = num_heads
        self.head_size = hidden_units // num_heads

    def forward(self, queries, keys, time_mask, key_mask):
        b, t, c = queries.shape
        Q = self.Q_w(queries).view(b, t, self.head_num, self.head_size).transpose(1, 2)
        K = self.K_w(keys).view(b, t, self.head_num, self.head_size).transpose(1, 2)
        V = self.V_w(keys).view(b, t, self.head_num, self.head_size).transpose(1, 2)

        attn_weights = Q.matmul(K.transpose(-1, -2)) / self.head_size ** 0.5
        paddings = -2.0 ** 32 + 1
        attn_weights = attn_weights.masked_fill(key_mask[:, None, None, :], paddings)
        attn_weights = attn_weights.masked_fill(time_mask, paddings)
        attn_weights = self.dropout(torch.softmax(attn_weights, dim=-1))
        return attn_weights.matmul(V).transpose(1, 2).reshape(b, t, c)


class SASRec(nn.Module):
    """Self-Attentive Sequential Recommendation. Item id 0 is padding, sequences are left-padded."""

    def __init__(self, item_num=500, maxlen=50, hidden_units=32, num_blocks=2, num_heads=2, dropout_rate=0.2):
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden_units)
        self.emb_dropout = nn.Dropout(p=dropout_rate)
        self.attention_layernorms = nn.ModuleList()
        self.attention_layers = nn.ModuleList()
        self.forward_layernorms = nn.ModuleList()
        self.forward_layers = nn.ModuleList()
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)
        for _ in range(num_blocks):
            self.attention_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(CausalMultiHeadAttention(hidden_units, num_heads, dropout_rate))
            self.forward_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(hidden_units, dropout_rate))

    def log2feats(self, log_seqs):
        seqs = self.item_emb(log_seqs) * self.item_emb.embedding_dim ** 0.5
        tl = seqs.shape[1]
        seqs = seqs + self.pos_emb(torch.arange(tl, device=log_seqs.device))
        seqs = self.emb_dropout(seqs)

        timeline_mask = (log_seqs != 0)
        seqs = seqs * timeline_mask.unsqueeze(-1)
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=log_seqs.device))

        for norm1, attn, norm2, ffn in zip(self.attention_layernorms, self.attention_layers,
                                           self.forward_layernorms, self.forward_layers):
            Q = norm1(seqs)
            seqs = Q + attn(Q, seqs, attention_mask, timeline_mask)
            seqs = ffn(norm2(seqs))
            seqs = seqs * timeline_mask.unsqueeze(-1)
        return self.last_layernorm(seqs)

    def forward(self, log_seqs):
        feats = self.log2feats(log_seqs)
        return feats.matmul(self.item_emb.weight.t())
