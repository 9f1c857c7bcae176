import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal (optionally banded) grouped attention with one learned sink logit per query head.

    The sink takes part in the softmax and has no value, so a head can put part of its
    weight nowhere. With ``sliding_window = w`` a query sees itself and the w - 1 tokens before it;
    0 means no limit.
    """

    def __init__(self, hidden_size=64, num_attention_heads=8, num_key_value_heads=2, head_dim=16, sliding_window=0):
        super().__init__()
        self.head_dim = head_dim
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.q_mult = num_attention_heads // num_key_value_heads
        self.sliding_window = sliding_window
        self.sinks = nn.Parameter(torch.randn(num_attention_heads))
        self.qkv = nn.Linear(hidden_size, head_dim * (num_attention_heads + 2 * num_key_value_heads))
        self.out = nn.Linear(head_dim * num_attention_heads, hidden_size)
        self.sm_scale = head_dim ** -0.5

    def forward(self, x):
        bsz, n_tokens, _ = x.shape
        nq = self.num_attention_heads * self.head_dim
        nkv = self.num_key_value_heads * self.head_dim
        q, k, v = self.qkv(x).split([nq, nkv, nkv], dim=-1)

        q = q.view(bsz, n_tokens, self.num_key_value_heads, self.q_mult, self.head_dim)
        k = k.view(bsz, n_tokens, self.num_key_value_heads, 1, self.head_dim).expand(-1, -1, -1, self.q_mult, -1)
        v = v.view(bsz, n_tokens, self.num_key_value_heads, 1, self.head_dim).expand(-1, -1, -1, self.q_mult, -1)

        QK = torch.einsum("bqhmd,bkhmd->bhmqk", q, k) * self.sm_scale
        mask = torch.triu(QK.new_full((n_tokens, n_tokens), -float("inf")), diagonal=1)
        if self.sliding_window > 0:
            mask = mask + torch.tril(mask.new_full((n_tokens, n_tokens), -float("inf")), diagonal=-self.sliding_window)
        QK = QK + mask

        S = self.sinks.view(1, self.num_key_value_heads, self.q_mult, 1, 1).expand(bsz, -1, -1, n_tokens, 1)
        W = torch.softmax(torch.cat([QK, S], dim=-1), dim=-1)[..., :-1]

        attn = torch.einsum("bhmqk,bkhmd->bqhmd", W, v)
        return self.out(attn.reshape(bsz, n_tokens, -1))
