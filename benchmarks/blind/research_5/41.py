import torch
import torch.nn as nn


class PointWiseFeedForward(nn.Module):
    def __init__(self, hidden, dropout):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.conv2 = nn.Conv1d(hidden, hidden, kernel_size=1)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x):
        y = self.conv1(x.transpose(-1, -2))
        y = self.conv2(torch.relu(self.dropout1(y)))
        return x + self.dropout2(y).transpose(-1, -2)


class SASRec(nn.Module):
    """Self-attentive sequential recommendation.

    Sequences of item ids are padded with 0 on the left. Returns the states ``[B, T, hidden]``; the
    score of a candidate is its inner product with the state of the last position.

    Padded queries keep themselves as their only key. That way no row of the softmax is empty, and
    their states are set to zero after each block anyway. As in the released implementation the
    query is the normalised input, keys and values are the raw input, and the skip connection
    carries the normalised query.
    """

    def __init__(self, item_num=200, hidden_units=64, num_heads=2, num_blocks=2, maxlen=50, dropout_rate=0.2):
        super().__init__()
        self.num_heads = num_heads
        self.hidden_units = hidden_units
        self.item_emb = nn.Embedding(item_num + 1, hidden_units, padding_idx=0)
        self.pos_emb = nn.Embedding(maxlen, hidden_units)
        self.emb_dropout = nn.Dropout(dropout_rate)
        self.attention_norms = nn.ModuleList([nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks)])
        self.attentions = nn.ModuleList(
            [nn.MultiheadAttention(hidden_units, num_heads, dropout_rate) for _ in range(num_blocks)]
        )
        self.forward_norms = nn.ModuleList([nn.LayerNorm(hidden_units, eps=1e-8) for _ in range(num_blocks)])
        self.forwards = nn.ModuleList([PointWiseFeedForward(hidden_units, dropout_rate) for _ in range(num_blocks)])
        self.last_norm = nn.LayerNorm(hidden_units, eps=1e-8)

    def _blocked(self, padding):
        b, t = padding.shape
        eye = torch.eye(t, dtype=torch.bool, device=padding.device)
        future = torch.ones_like(eye).triu(1)
        blocked = (future[None] | padding[:, None, :]) & ~eye[None]
        return blocked.repeat_interleave(self.num_heads, dim=0)

    def forward(self, log_seqs):
        b, t = log_seqs.shape
        padding = log_seqs.eq(0)
        empty = padding.unsqueeze(-1)

        # counted from the end, so that the latest item always has the same position
        position = torch.arange(t - 1, -1, -1, device=log_seqs.device)
        seqs = self.item_emb(log_seqs) * self.hidden_units ** 0.5 + self.pos_emb(position)
        seqs = self.emb_dropout(seqs).masked_fill(empty, 0.0)

        blocked = self._blocked(padding)
        for norm_a, attention, norm_f, forward in zip(
            self.attention_norms, self.attentions, self.forward_norms, self.forwards
        ):
            seqs = seqs.transpose(0, 1)
            query = norm_a(seqs)
            out, _ = attention(query, seqs, seqs, attn_mask=blocked, need_weights=False)
            seqs = (query + out).transpose(0, 1)
            seqs = forward(norm_f(seqs)).masked_fill(empty, 0.0)
        return self.last_norm(seqs)
