import torch
import torch.nn as nn


class multihead_attention(nn.Module):
    '''Applies multihead attention.

    Args:
      num_units: A scalar. Attention size.
      num_heads: An int. Number of heads.
      dropout_rate: A floating point number.
      causality: Boolean. If true, units that reference the future are masked.

    Inputs:
      queries: A 3d tensor with shape of [N, T_q, C_q].
      keys: A 3d tensor with shape of [N, T_k, C_k].
      key_masks: A 2d tensor [N, T_k], 1 for tokens and 0 for padding.

    Returns:
      A 3d tensor with shape of (N, T_q, C)
    '''

    def __init__(self, num_units=64, num_heads=4, dropout_rate=0.0, causality=False):
        super(multihead_attention, self).__init__()
        self.num_units = num_units
        self.num_heads = num_heads
        self.causality = causality
        self.Q_proj = nn.Linear(num_units, num_units)
        self.K_proj = nn.Linear(num_units, num_units)
        self.V_proj = nn.Linear(num_units, num_units)
        self.output_dropout = nn.Dropout(dropout_rate)
        self.normalization = nn.LayerNorm(num_units)

    def forward(self, queries, keys, key_masks=None):
        # Linear projections
        Q = self.Q_proj(queries)  # (N, T_q, C)
        K = self.K_proj(keys)  # (N, T_k, C)
        V = self.V_proj(keys)  # (N, T_k, C)

        # Split and concat
        Q_ = torch.cat(torch.chunk(Q, self.num_heads, dim=2), dim=0)  # (h*N, T_q, C/h)
        K_ = torch.cat(torch.chunk(K, self.num_heads, dim=2), dim=0)  # (h*N, T_k, C/h)
        V_ = torch.cat(torch.chunk(V, self.num_heads, dim=2), dim=0)  # (h*N, T_k, C/h)

        # Multiplication and scale
        outputs = torch.bmm(Q_, K_.transpose(1, 2))  # (h*N, T_q, T_k)
        outputs = outputs / (K_.size(-1) ** 0.5)

        # Key masking
        if key_masks is not None:
            masks = torch.repeat_interleave(key_masks.bool(), self.num_heads, dim=0)
            masks = masks.unsqueeze(1).expand(-1, queries.size(1), -1)  # (h*N, T_q, T_k)
            outputs = outputs.masked_fill(~masks, -2 ** 32 + 1)

        # Causality = future blinding
        if self.causality:
            tril = torch.ones_like(outputs[0]).tril().bool()  # (T_q, T_k)
            outputs = outputs.masked_fill(~tril, -2 ** 32 + 1)

        outputs = torch.softmax(outputs, dim=-1)
        outputs = self.output_dropout(outputs)

        # Weighted sum
        outputs = torch.bmm(outputs, V_)  # (h*N, T_q, C/h)

        # Restore shape
        outputs = torch.cat(torch.chunk(outputs, self.num_heads, dim=0), dim=2)  # (N, T_q, C)

        # Residual connection
        outputs = outputs + queries
        return self.normalization(outputs)
