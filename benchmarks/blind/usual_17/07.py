import torch
from torch import nn


class SinkAttention(nn.Module):
    """Causal GQA with a learned per-head sink logit.

    The sink takes part in the softmax denominator but carries no value, so a head may
    attend to "nothing": rows of the returned probabilities sum to less than one.
    """

    def __init__(self, hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=8):
        super().__init__()
        self.n_heads = num_attention_heads
        self.n_kv = num_key_value_heads
        self.head_dim = head_dim
        self.sinks = nn.Parameter(torch.zeros(num_attention_heads))
        self.qkv = nn.Linear(hidden_size, head_dim * (num_attention_heads + 2 * num_key_value_heads))
        self.out = nn.Linear(head_dim * num_attention_heads, hidden_size)
        self.sm_scale = head_dim ** -0.5

    def forward(self, x):
        b, n, _ = x.shape
        q_per_kv = self.n_heads // self.n_kv
        qkv = self.qkv(x)
        q, k, v = qkv.split(
            [self.n_heads * self.head_dim, self.n_kv * self.head_dim, self.n_kv * self.head_dim], dim=-1
        )
        q = q.view(b, n, self.n_kv, q_per_kv, self.head_dim)
        k = k.view(b, n, self.n_kv, self.head_dim)
        v = v.view(b, n, self.n_kv, self.head_dim)

        logits = torch.einsum("bqgmd,bkgd->bgmqk", q, k) * self.sm_scale
        future = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=1)
        logits = logits.masked_fill(future, float("-inf"))

        sink = self.sinks.view(1, self.n_kv, q_per_kv, 1, 1).expand(b, -1, -1, n, -1)
        logits = torch.cat([logits, sink.to(logits.dtype)], dim=-1)
        weights = torch.softmax(logits.float(), dim=-1).to(v.dtype)
        weights = weights[..., :-1]

        ctx = torch.einsum("bgmqk,bkgd->bqgmd", weights, v)
        return self.out(ctx.reshape(b, n, -1))
