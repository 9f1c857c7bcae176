import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedCausalAttention(nn.Module):
    """Causal attention for packed sequences.

    Several documents share one row; ``segment_ids`` (B, T) numbers them, so that tokens only
    see earlier tokens of their own document.
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.dropout = dropout
        self.c_attn = nn.Linear(d_model, 3 * d_model)
        self.c_proj = nn.Linear(d_model, d_model)

    def build_mask(self, segment_ids):
        t = segment_ids.size(1)
        causal = torch.tril(torch.ones(t, t, dtype=torch.bool, device=segment_ids.device))
        same = segment_ids.unsqueeze(-1) == segment_ids.unsqueeze(-2)
        return (causal | same).unsqueeze(1)

    def forward(self, x, segment_ids=None):
        B, T, C = x.shape
        if segment_ids is None:
            segment_ids = torch.zeros(B, T, dtype=torch.long, device=x.device)
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=self.build_mask(segment_ids),
            dropout_p=self.dropout if self.training else 0,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
