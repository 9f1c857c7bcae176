import torch
import torch.nn as nn


class MultiheadAttention(nn.Module):
    """Multi-head attention with the heads stacked on the batch axis (head-major: all examples of
    head 0, then all of head 1, ...), followed by the residual connection and layer normalisation.

    queries: (N, T_q, num_units), keys: (N, T_k, num_units)
    query_mask, key_mask: (N, T_q) and (N, T_k), 1 for words and 0 for padding
    """

    def __init__(self, num_units=64, num_heads=8, dropout_rate=0.0, causality=False):
        super().__init__()
        assert num_units % num_heads == 0
        self.num_heads = num_heads
        self.causality = causality
        self.Q_proj = nn.Sequential(nn.Linear(num_units, num_units), nn.ReLU())
        self.K_proj = nn.Sequential(nn.Linear(num_units, num_units), nn.ReLU())
        self.V_proj = nn.Sequential(nn.Linear(num_units, num_units), nn.ReLU())
        self.dropout = nn.Dropout(dropout_rate)
        self.normalization = nn.LayerNorm(num_units)

    def forward(self, queries, keys, query_mask=None, key_mask=None):
        Q = self.Q_proj(queries)  # (N, T_q, C)
        K = self.K_proj(keys)  # (N, T_k, C)
        V = self.V_proj(keys)  # (N, T_k, C)

        # Split and concat
        Q_ = torch.cat(torch.chunk(Q, self.num_heads, dim=2), dim=0)  # (h*N, T_q, C/h)
        K_ = torch.cat(torch.chunk(K, self.num_heads, dim=2), dim=0)  # (h*N, T_k, C/h)
        V_ = torch.cat(torch.chunk(V, self.num_heads, dim=2), dim=0)  # (h*N, T_k, C/h)

        outputs = torch.bmm(Q_, K_.transpose(1, 2))  # (h*N, T_q, T_k)
        outputs = outputs / (K_.size(-1) ** 0.5)

        if key_mask is not None:
            key_masks = key_mask.repeat(self.num_heads, 1).unsqueeze(1)  # (h*N, 1, T_k)
            outputs = outputs.masked_fill(key_masks == 0, -(2.0 ** 32) + 1)
        if self.causality:
            tril = torch.ones(outputs.shape[1:], device=outputs.device).tril()
            outputs = outputs.masked_fill(tril == 0, -(2.0 ** 32) + 1)

        outputs = torch.softmax(outputs, dim=-1)
        if query_mask is not None:
            query_masks = query_mask.repeat(self.num_heads, 1).unsqueeze(-1)  # (h*N, T_q, 1)
            outputs = outputs * query_masks.to(outputs.dtype)
        outputs = self.dropout(outputs)

        outputs = torch.bmm(outputs, V_)  # (h*N, T_q, C/h)
        outputs = torch.cat(torch.chunk(outputs, self.num_heads, dim=0), dim=2)  # (N, T_q, C)

        return self.normalization(outputs + queries)
