import torch
import torch.nn as nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.bmm(q, k.transpose(1, 2)) / k.size(-1) ** 0.5
        if mask is not None:
            attn = attn.masked_fill(mask, -1e9)
        attn = torch.softmax(attn, dim=-1)
        return torch.bmm(self.dropout(attn), v), attn


class InterpretableMultiHeadAttention(nn.Module):
    """Temporal Fusion Transformer, section 4.4.

    All heads share one value projection, so that averaging the heads is the same
    as applying the averaged attention matrix to the values.

    mask: bool, [B, Tq, Tk], True = not allowed.
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

    def forward(self, q, k, v, mask=None):
        heads, attns = [], []
        vs = self.v_layer(v)
        for i in range(self.n_head):
            qs = self.q_layers[i](q)
            ks = self.k_layers[i](k)
            head, attn = self.attention(qs, ks, vs, mask)
            heads.append(self.dropout(head))
            attns.append(attn)

        outputs = torch.stack(heads, dim=2).mean(dim=2)
        attn = torch.stack(attns, dim=2)  # [B, Tq, n_head, Tk]
        return self.dropout(self.w_h(outputs)), attn
