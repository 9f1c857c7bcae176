import torch
import torch.nn as nn
import torch.nn.functional as F


class CachedCausalAttention(nn.Module):
    """Causal self-attention with a preallocated key/value cache.

    Training: call without ``start_pos``. Generation: pass the absolute position of ``x[:, 0]``;
    keys and values are written to the cache and everything up to the last token is attended to.
    """

    def __init__(self, n_embd=64, n_head=4, max_batch=4, max_len=256, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.head_dim = n_embd // n_head
        self.dropout = dropout
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        shape = (max_batch, n_head, max_len, self.head_dim)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def _update(self, k, v, start_pos):
        bsz, end = k.size(0), start_pos + k.size(2)
        self.k_cache[:bsz, :, start_pos:end] = k.detach()
        self.v_cache[:bsz, :, start_pos:end] = v.detach()
        return self.k_cache[:bsz, :, :end].clone(), self.v_cache[:bsz, :, :end].clone()

    def forward(self, x, start_pos=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        k = k.view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        v = v.view(B, T, self.n_head, self.head_dim).transpose(1, 2)

        if start_pos is not None:
            k, v = self._update(k, v, start_pos)

        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
