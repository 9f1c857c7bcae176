import torch
import torch.nn as nn


class MultiheadAttention(nn.Module):
    """PyTorch port of a TF1 ``multihead_attention`` op that stacks the heads along the batch axis.

    Residual connection and layer norm are part of the op.
    """

    def __init__(self, num_units=64, num_heads=4, dropout_rate=0.0, causality=False):
        super().__init__()
        self.num_units = num_units
        self.num_heads = num_heads
        self.causality = causality
        self.Q_dense = nn.Linear(num_units, num_units)
        self.K_dense = nn.Linear(num_units, num_units)
        self.V_dense = nn.Linear(num_units, num_units)
        self.dropout = nn.Dropout(dropout_rate)
        self.ln = nn.LayerNorm(num_units)

    def _split(self, t):
        return torch.cat(torch.chunk(t, self.num_heads, dim=2), dim=0)  # (h*N, T, C/h)

    def forward(self, queries, keys, values=None, key_masks=None):
        """
        queries:   [N, T_q, C]
        keys:      [N, T_k, C]
        values:    [N, T_k, C] (defaults to keys)
        key_masks: [N, T_k], 1 for padding, 0 for tokens
        """
        if values is None:
            values = keys
        Q_ = self._split(self.Q_dense(queries))
        K_ = self._split(self.K_dense(keys))
        V_ = self._split(self.V_dense(values))

        outputs = torch.bmm(Q_, K_.transpose(1, 2))
        outputs = outputs / (K_.size(-1) ** 0.5)

        padding_num = -2.0 ** 32 + 1
        if key_masks is not None:
            masks = key_masks.bool().repeat_interleave(self.num_heads, dim=0)  # (h*N, T_k)
            outputs = outputs.masked_fill(masks.unsqueeze(1), padding_num)

        if self.causality:
            tril = torch.ones_like(outputs[0]).tril().bool()
            outputs = outputs.masked_fill(~tril, padding_num)

        outputs = torch.softmax(outputs, dim=-1)
        outputs = self.dropout(outputs)
        outputs = torch.bmm(outputs, V_)  # (h*N, T_q, C/h)

        outputs = torch.cat(torch.chunk(outputs, self.num_heads, dim=0), dim=2)
        return self.ln(outputs + queries)
