import torch
import torch.nn as nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.softmax = nn.Softmax(dim=2)

    def forward(self, q, k, v, mask=None):
        attn = torch.bmm(q, k.permute(0, 2, 1)) / (k.size(-1) ** 0.5)
        if mask is not None:
            attn = attn.masked_fill(mask, -1e9)
        attn = self.softmax(attn)
        return torch.bmm(self.dropout(attn), v), attn


class InterpretableMultiHeadAttention(nn.Module):
    """Interpretable multi-head attention of the Temporal Fusion Transformer.

    Heads have their own queries and keys and share the value projection, so that the head average of the
    weights can be read as the importance of each past step.

    Returns:
        outputs: (batch, time_q, d_model)
        attn: (batch, time_q, time_k), averaged over the heads
    """

    def __init__(self, n_head=4, d_model=32, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_k = self.d_q = self.d_v = d_model // n_head
        self.dropout = nn.Dropout(p=dropout)
        self.v_layer = nn.Linear(d_model, self.d_v)
        self.q_layers = nn.ModuleList([nn.Linear(d_model, self.d_q) for _ in range(n_head)])
        self.k_layers = nn.ModuleList([nn.Linear(d_model, self.d_k) for _ in range(n_head)])
        self.attention = ScaledDotProductAttention(dropout)
        self.w_h = nn.Linear(self.d_v, d_model, bias=False)
        for name, p in self.named_parameters():
            if "bias" not in name:
                nn.init.xavier_uniform_(p)
            else:
                nn.init.zeros_(p)

    def forward(self, q, k, v, mask=None):
        heads, attns = [], []
        vs = self.v_layer(v)
        for q_layer, k_layer in zip(self.q_layers, self.k_layers):
            head, attn = self.attention(q_layer(q), k_layer(k), vs, mask)
            heads.append(self.dropout(head))
            attns.append(attn)

        head = torch.stack(heads, dim=1)
        attn = torch.stack(attns, dim=1)

        outputs = self.w_h(head.mean(dim=1))
        outputs = self.dropout(outputs)
        return outputs, attn.mean(dim=0)
