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
        out = self.conv1(inputs.transpose(-1, -2))
        out = self.relu(self.dropout1(out))
        out = self.dropout2(self.conv2(out))
        return out.transpose(-1, -2) + inputs


class SASRecBackbone(nn.Module):
    """Self-attentive sequential recommendation.

    log_seqs: LongTensor [batch, maxlen] with item ids, 0 = padding (on the left).
    Returns one feature vector per position, [batch, maxlen, hidden_units].
    """

    def __init__(self, item_num=200, maxlen=50, hidden_units=32, num_blocks=2, num_heads=1,
                 dropout_rate=0.2):
        super().__init__()
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen + 1, hidden_units, padding_idx=0)
        self.emb_dropout = nn.Dropout(p=dropout_rate)

        self.attention_layernorms = nn.ModuleList()
        self.attention_layers = nn.ModuleList()
        self.forward_layernorms = nn.ModuleList()
        self.forward_layers = nn.ModuleList()
        self.last_layernorm = nn.LayerNorm(hidden_units, eps=1e-8)

        for _ in range(num_blocks):
            self.attention_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.attention_layers.append(
                nn.MultiheadAttention(hidden_units, num_heads, dropout_rate))
            self.forward_layernorms.append(nn.LayerNorm(hidden_units, eps=1e-8))
            self.forward_layers.append(PointWiseFeedForward(hidden_units, dropout_rate))

    def forward(self, log_seqs):
        seqs = self.item_emb(log_seqs) * np.sqrt(self.item_emb.embedding_dim)
        positions = torch.arange(1, log_seqs.shape[1] + 1, device=log_seqs.device)
        positions = positions.unsqueeze(0).expand_as(log_seqs) * (log_seqs != 0)
        seqs = self.emb_dropout(seqs + self.pos_emb(positions))

        timeline_mask = (log_seqs == 0).unsqueeze(-1)
        seqs = seqs.masked_fill(timeline_mask, 0.0)

        tl = seqs.shape[0]
        attention_mask = ~torch.tril(torch.ones((tl, tl), dtype=torch.bool, device=seqs.device))

        for i in range(len(self.attention_layers)):
            Q = self.attention_layernorms[i](seqs)
            mha_outputs, _ = self.attention_layers[i](Q, seqs, seqs, attn_mask=attention_mask)
            seqs = Q + mha_outputs
            seqs = self.forward_layernorms[i](seqs)
            seqs = self.forward_layers[i](seqs)
            seqs = seqs.masked_fill(timeline_mask, 0.0)

        return self.last_layernorm(seqs)
