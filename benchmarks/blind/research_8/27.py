import torch
import torch.nn as nn


class InterpretableMultiHeadAttention(nn.Module):
    """Temporal Fusion Transformer, section 4.4.

    One value projection (of the size of a single head) serves all heads and the heads are averaged, so that the mean of
    their weights explains the output. ``mask`` is True where attention is forbidden, [Tq, Tk] or [B, Tq, Tk].
    """

    def __init__(self, n_head: int = 4, d_model: int = 64, dropout: float = 0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.q_layers = nn.ModuleList(nn.Linear(d_model, self.d_head) for _ in range(n_head))
        self.k_layers = nn.ModuleList(nn.Linear(d_model, self.d_head) for _ in range(n_head))
        self.v_layer = nn.Linear(d_model, self.d_head)
        self.w_h = nn.Linear(self.d_head, d_model, bias=False)
        self.dropout = nn.Dropout(dropout)

    @staticmethod
    def decoder_mask(n_enc: int, n_dec: int, device=None):
        """Queries are the n_dec future steps, keys the n_enc past ones followed by the future ones."""
        past = torch.zeros(n_dec, n_enc, dtype=torch.bool, device=device)
        future = torch.ones(n_dec, n_dec, dtype=torch.bool, device=device).triu(1)
        return torch.cat([past, future], dim=1)

    def forward(self, q, k, v, mask=None):
        vs = self.v_layer(v)
        heads, attns = [], []
        for ql, kl in zip(self.q_layers, self.k_layers):
            score = torch.bmm(ql(q), kl(k).transpose(1, 2)) / self.d_head ** 0.5
            if mask is not None:
                score = score.masked_fill(mask, -1e9)
            attn = torch.softmax(score, dim=-1)
            heads.append(torch.bmm(self.dropout(attn), vs))
            attns.append(attn)
        out = torch.stack(heads, dim=0).mean(dim=0)
        return self.dropout(self.w_h(out)), torch.stack(attns, dim=2)
