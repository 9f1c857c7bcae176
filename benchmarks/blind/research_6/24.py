import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    r"""Causal grouped-query attention with a learned sink logit per head.

    The sink takes part in the softmax and is dropped afterwards, hence the weights of a
    row sum to less than one: a head may attend to "nothing".

    ``window``: if set, a query sees itself and the ``window - 1`` tokens before it.
    """

    def __init__(self, dim=64, num_heads=8, num_kv_heads=2, window=None):
        super().__init__()
        self.nh, self.nkv = num_heads, num_kv_heads
        self.hd = dim // num_heads
        self.window = window
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.q_proj = nn.Linear(dim, num_heads * self.hd)
        self.k_proj = nn.Linear(dim, num_kv_heads * self.hd)
        self.v_proj = nn.Linear(dim, num_kv_heads * self.hd)
        self.o_proj = nn.Linear(num_heads * self.hd, dim)

    def forward(self, x):
        B, T, _ = x.shape
        groups = self.nh // self.nkv
        # query head h uses kv head h // groups
        q = self.q_proj(x).view(B, T, self.nkv, groups, self.hd)
        k = self.k_proj(x).view(B, T, self.nkv, self.hd)
        v = self.v_proj(x).view(B, T, self.nkv, self.hd)

        qk = torch.einsum("bqgmd,bkgd->bgmqk", q, k) / self.hd ** 0.5
        bias = torch.triu(qk.new_full((T, T), -float("inf")), diagonal=1)
        if self.window is not None:
            bias = bias + torch.tril(qk.new_full((T, T), -float("inf")), diagonal=-self.window)
        qk = qk + bias

        sink = self.sinks.view(1, self.nkv, groups, 1, 1).expand(B, -1, -1, T, -1)
        probs = torch.cat([qk, sink.to(qk.dtype)], dim=-1).float().softmax(dim=-1)[..., :-1]
        out = torch.einsum("bgmqk,bkgd->bqgmd", probs.to(v.dtype), v)
        return self.o_proj(out.reshape(B, T, -1))
