import torch
import torch.nn as nn
import torch.nn.functional as F


class StreamingSelfAttention(nn.Module):
    """Causal self-attention that can be run in one go or step by step.

    Args:
        x: (batch, time, dim)
        cache: dictionary owned by the generation loop, which passes the same one at every step
            of a sequence. Without it the call stands alone and sees only ``x``.
    """

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def _extend(self, cache, name, new):
        old = cache.get(name)
        full = new if old is None else torch.cat([old, new], dim=2)
        cache[name] = full.detach()
        return full

    def forward(self, x, cache={}):
        b, t, c = x.shape
        qkv = self.qkv(x).view(b, t, 3, self.num_heads, self.head_dim)
        q, k, v = (z.transpose(1, 2) for z in qkv.unbind(2))

        k = self._extend(cache, "k", k)
        v = self._extend(cache, "v", v)

        total = k.shape[2]
        visible = torch.ones(t, total, dtype=torch.bool, device=x.device).tril(total - t)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=visible, dropout_p=self.dropout if self.training else 0.0
        )
        return self.proj(y.transpose(1, 2).reshape(b, t, c))
