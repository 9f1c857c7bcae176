import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):

    def __init__(self, n_embd=64, n_head=4, max_batch=8, max_seq=128, bias=False):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)
        self.n_head = n_head
        self.n_embd = n_embd
        shape = (max_batch, n_head, max_seq, n_embd // n_head)
        self.register_buffer("k_cache", torch.zeros(shape), persistent=False)
        self.register_buffer("v_cache", torch.zeros(shape), persistent=False)

    def forward(self, x, start_pos=None):
        """
        x: (B, T, C)
        start_pos: None for training. During generation, index of x[:, 0] in the sequence;
                   keys and values of this call are written to the cache from there.
        """
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        if start_pos is not None:
            end = start_pos + T
            self.k_cache[:B, :, start_pos:end] = k.detach()
            self.v_cache[:B, :, start_pos:end] = v.detach()
            k = self.k_cache[:B, :, :end]
            v = self.v_cache[:B, :, :end]

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
