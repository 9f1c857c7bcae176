import torch
import torch.nn as nn
import torch.nn.functional as F


class PostNormBlock(nn.Module):
    """Encoder block of "Attention Is All You Need": residual first, then LayerNorm.

    key_padding_mask follows torch: True marks positions that are ignored.
    """

    def __init__(self, d_model: int = 64, nhead: int = 4, dim_ff: int = 256, dropout: float = 0.1):
        super().__init__()
        self.nhead = nhead
        self.dropout = dropout
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.ff1 = nn.Linear(d_model, dim_ff)
        self.ff2 = nn.Linear(dim_ff, d_model)
        self.ln_attn = nn.LayerNorm(d_model)
        self.ln_ff = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def _attend(self, x, key_padding_mask):
        b, t, d = x.shape
        q, k, v = self.in_proj(x).view(b, t, 3, self.nhead, d // self.nhead).permute(2, 0, 3, 1, 4)
        mask = None
        if key_padding_mask is not None:
            mask = ~key_padding_mask[:, None, None, :]
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out_proj(y.transpose(1, 2).flatten(2))

    def forward(self, x, key_padding_mask=None):
        x = self.ln_attn(x + self.drop(self._attend(x, key_padding_mask)))
        x = self.ln_ff(x + self.drop(self.ff2(self.drop(F.relu(self.ff1(x))))))
        return x
