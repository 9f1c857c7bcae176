import torch
import torch.nn as nn
import torch.nn.functional as F


class MuGQAttention(nn.Module):
    """Grouped-query causal attention under muP.

    Maximal update parametrisation wants logits of q.k / d and not q.k / sqrt(d) as the model grows. The factor
    sqrt(base_head_dim) makes both agree at the base width, where ``attn_mult`` is tuned. With ``zero_init_q``
    the query projection starts at zero (Tensor Programs V, appendix D.2).
    """

    def __init__(self, d_model=64, n_heads=4, n_kv_heads=2, base_head_dim=8, attn_mult=1.0, zero_init_q=False):
        super().__init__()
        assert n_heads % n_kv_heads == 0
        self.n_heads, self.n_kv = n_heads, n_kv_heads
        self.hd = d_model // n_heads
        self.scale = attn_mult * base_head_dim ** 0.5 / self.hd
        self.wq = nn.Linear(d_model, n_heads * self.hd, bias=False)
        self.wk = nn.Linear(d_model, n_kv_heads * self.hd, bias=False)
        self.wv = nn.Linear(d_model, n_kv_heads * self.hd, bias=False)
        self.wo = nn.Linear(n_heads * self.hd, d_model, bias=False)
        if zero_init_q:
            nn.init.zeros_(self.wq.weight)

    def forward(self, x):
        b, t, _ = x.shape
        g = self.n_heads // self.n_kv
        q = self.wq(x).view(b, t, self.n_kv, g, self.hd).permute(0, 2, 3, 1, 4)
        k = self.wk(x).view(b, t, self.n_kv, 1, self.hd).permute(0, 2, 3, 1, 4).expand(-1, -1, g, -1, -1)
        v = self.wv(x).view(b, t, self.n_kv, 1, self.hd).permute(0, 2, 3, 1, 4).expand(-1, -1, g, -1, -1)
        q, k, v = (z.reshape(b, self.n_heads, t, self.hd) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.wo(y.transpose(1, 2).flatten(2))
