import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttentionLayer(nn.Module):
    """Port of the TensorFlow layer: the heads are split along the channels and stacked on the batch axis."""

    def __init__(self, num_units=64, num_heads=4, dropout_rate=0.0):
        super().__init__()
        assert num_units % num_heads == 0
        self.num_units = num_units
        self.num_heads = num_heads
        self.Q_proj = nn.Linear(num_units, num_units)
        self.K_proj = nn.Linear(num_units, num_units)
        self.V_proj = nn.Linear(num_units, num_units)
        self.output_dropout = nn.Dropout(dropout_rate)
        self.layer_norm = nn.LayerNorm(num_units)

    def forward(self, queries, keys=None, key_masks=None, causality=False):
        """
        queries:   (N, T_q, C)
        keys:      (N, T_k, C), the queries if not given
        key_masks: (N, T_k), 1 for valid keys and 0 for padding
        returns    (N, T_q, C)
        """
        keys = queries if keys is None else keys
        Q = self.Q_proj(queries)  # (N, T_q, C)
        K = self.K_proj(keys)  # (N, T_k, C)
        V = self.V_proj(keys)  # (N, T_k, C)

        # split and concat
        Q_ = torch.cat(torch.chunk(Q, self.num_heads, dim=2), dim=0)  # (h*N, T_q, C/h)
        K_ = torch.cat(torch.chunk(K, self.num_heads, dim=2), dim=0)  # (h*N, T_k, C/h)
        V_ = torch.cat(torch.chunk(V, self.num_heads, dim=2), dim=0)  # (h*N, T_k, C/h)

        outputs = torch.bmm(Q_, K_.transpose(1, 2))  # (h*N, T_q, T_k)
        outputs = outputs / (K_.size(-1) ** 0.5)

        # key masking
        padding_num = -2 ** 32 + 1
        if key_masks is not None:
            key_masks = key_masks.repeat_interleave(self.num_heads, dim=0)  # (h*N, T_k)
            key_masks = key_masks.unsqueeze(1).expand(-1, queries.size(1), -1)  # (h*N, T_q, T_k)
            outputs = outputs.masked_fill(key_masks == 0, padding_num)

        # causality = future blinding
        if causality:
            tril = torch.tril(torch.ones_like(outputs[0]))  # (T_q, T_k)
            outputs = outputs.masked_fill(tril.unsqueeze(0) == 0, padding_num)

        outputs = F.softmax(outputs, dim=-1)
        outputs = self.output_dropout(outputs)
        outputs = torch.bmm(outputs, V_)  # (h*N, T_q, C/h)

        # restore shape
        outputs = torch.cat(torch.chunk(outputs, self.num_heads, dim=0), dim=2)  # (N, T_q, C)
        return self.layer_norm(outputs + queries)
