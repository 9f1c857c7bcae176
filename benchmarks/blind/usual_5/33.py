import torch
import torch.nn as nn
import torch.nn.functional as F


class GroupedSDPA(nn.Module):
    """Grouped-query causal attention for left-padded batches.

    ``token_mask`` is (batch, seq), True for tokens. A query that is padding itself has
    no token in front of it; it is allowed to see its own position so that its row of the
    softmax isn't empty. What comes out there is of no interest and is set to zero.
    """

    def __init__(self, dim=256, num_heads=8, num_kv_heads=2, dropout=0.0):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.nh, self.nkv = num_heads, num_kv_heads
        self.hd = dim // num_heads
        self.dropout = dropout
        self.q = nn.Linear(dim, num_heads * self.hd, bias=False)
        self.kv = nn.Linear(dim, 2 * num_kv_heads * self.hd, bias=False)
        self.o = nn.Linear(num_heads * self.hd, dim, bias=False)

    def forward(self, x, token_mask=None):
        b, t, _ = x.shape
        q = self.q(x).unflatten(-1, (self.nh, self.hd)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.nkv, self.hd)).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        if token_mask is None:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True, enable_gqa=True)
        else:
            token_mask = token_mask.bool()
            tri = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
            eye = torch.eye(t, dtype=torch.bool, device=x.device)
            take_part = (tri & token_mask[:, None, None, :]) | eye
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=take_part, dropout_p=p, enable_gqa=True)
        y = self.o(y.transpose(1, 2).flatten(2))
        return y if token_mask is None else y * token_mask.unsqueeze(-1)
