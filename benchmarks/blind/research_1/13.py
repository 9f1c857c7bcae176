import torch
import torch.nn as nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout: float = None, scale: bool = True):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout) if dropout is not None else None
        self.scale = scale
        self.softmax = nn.Softmax(dim=2)

    def forward(self, q, k, v, mask=None):
        attn = torch.bmm(q, k.permute(0, 2, 1))
        if self.scale:
            attn = attn / k.size(-1) ** 0.5
        if mask is not None:
            attn = attn.masked_fill(mask, -1e9)
        attn = self.softmax(attn)
        weights = attn
        if self.dropout is not None:
            attn = self.dropout(attn)
        return torch.bmm(attn, v), weights


class InterpretableMultiHeadAttention(nn.Module):
    """Interpretable multi-head attention of the Temporal Fusion Transformer.

    All heads share one value projection of size ``d_model // n_head`` and their outputs are
    averaged, so that the mean of the per-head weights is the effective attention pattern.

    Args:
        mask: bool, ``(batch, q_len, k_len)``; True marks positions that must not be attended.

    Returns:
        output ``(batch, q_len, d_model)`` and weights ``(batch, q_len, n_head, k_len)``.
    """

    def __init__(self, n_head: int = 4, d_model: int = 64, dropout: float = 0.0):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_k = self.d_q = self.d_v = d_model // n_head
        self.dropout = nn.Dropout(p=dropout)

        self.v_layer = nn.Linear(self.d_model, self.d_v)
        self.q_layers = nn.ModuleList([nn.Linear(self.d_model, self.d_q) for _ in range(self.n_head)])
        self.k_layers = nn.ModuleList([nn.Linear(self.d_model, self.d_k) for _ in range(self.n_head)])
        self.attention = ScaledDotProductAttention()
        self.w_h = nn.Linear(self.d_v, self.d_model, bias=False)
        self.init_weights()

    def init_weights(self):
        for name, p in self.named_parameters():
            if "bias" not in name:
                torch.nn.init.xavier_uniform_(p)
            else:
                torch.nn.init.zeros_(p)

    def forward(self, q, k, v, mask=None):
        heads, attns = [], []
        vs = self.v_layer(v)
        for i in range(self.n_head):
            qs = self.q_layers[i](q)
            ks = self.k_layers[i](k)
            head, attn = self.attention(qs, ks, vs, mask)
            heads.append(self.dropout(head))
            attns.append(attn)

        head = torch.stack(heads, dim=2) if self.n_head > 1 else heads[0].unsqueeze(2)
        attn = torch.stack(attns, dim=2)

        outputs = torch.mean(head, dim=2)
        outputs = self.w_h(outputs)
        outputs = self.dropout(outputs)
        return outputs, attn
