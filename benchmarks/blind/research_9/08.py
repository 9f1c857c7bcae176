"""Interpretable multi-head attention of the Temporal Fusion Transformer."""
import torch
import torch.nn as nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.bmm(q, k.permute(0, 2, 1))
        dimension = torch.as_tensor(k.size(-1), dtype=attn.dtype, device=attn.device).sqrt()
        attn = attn / dimension
        if mask is not None:
            attn = attn.masked_fill(mask, -1e-9)
        attn = torch.softmax(attn, dim=2)
        return torch.bmm(self.dropout(attn), v), attn


class InterpretableMultiHeadAttention(nn.Module):
    """All heads share one value projection, so the mean of the head weights can be read as importance.

    Args:
        q: [B, T_dec, d_model]
        k, v: [B, T_total, d_model]
        mask: bool [B, T_dec, T_total], True where attention is forbidden
    """

    def __init__(self, n_head: int = 4, d_model: int = 32, dropout: float = 0.0):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_k = self.d_q = self.d_v = d_model // n_head
        self.v_layer = nn.Linear(d_model, self.d_v)
        self.q_layers = nn.ModuleList([nn.Linear(d_model, self.d_q) for _ in range(n_head)])
        self.k_layers = nn.ModuleList([nn.Linear(d_model, self.d_k) for _ in range(n_head)])
        self.attention = ScaledDotProductAttention()
        self.w_h = nn.Linear(self.d_v, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)
        for name, p in self.named_parameters():
            if "bias" in name:
                nn.init.zeros_(p)
            else:
                nn.init.xavier_uniform_(p)

    def forward(self, q, k, v, mask=None):
        heads, attns = [], []
        vs = self.v_layer(v)
        for i in range(self.n_head):
            head, attn = self.attention(self.q_layers[i](q), self.k_layers[i](k), vs, mask)
            heads.append(self.dropout(head))
            attns.append(attn)
        head = torch.stack(heads, dim=2) if self.n_head > 1 else heads[0]
        attn = torch.stack(attns, dim=2)
        outputs = head.mean(dim=2) if self.n_head > 1 else head
        return self.dropout(self.w_h(outputs)), attn
