import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    """Encoder attention.

    blocked: (batch, seq) bool. True means "this token is hidden from everybody",
             the convention of nn.MultiheadAttention's key_padding_mask and the
             opposite of what scaled_dot_product_attention takes.
    Rows of hidden tokens come back as zeros.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, blocked=None):
        b, n, c = x.shape
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.num_heads, c // self.num_heads)).unbind(2)
        allowed = None
        if blocked is not None:
            allowed = blocked.logical_not()[:, None, None, :]
            nobody = blocked.all(dim=1)[:, None, None, None]
            allowed = allowed | nobody
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
            attn_mask=allowed,
            dropout_p=self.dropout if self.training else 0.0,
        )
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        if blocked is not None:
            y = y.masked_fill(blocked.unsqueeze(-1), 0.0)
        return y
