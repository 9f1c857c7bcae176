import torch
from torch import nn


class SinkAttention(nn.Module):
    """Grouped-query attention with a learned sink logit per head and an optional window.

    The sink takes part in the softmax as one more column without a value, so a head may put
    less than its whole weight on the tokens.
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_attention_heads: int = 8,
        num_key_value_heads: int = 2,
        sliding_window: int = 0,
    ):
        super().__init__()
        self.num_heads = num_attention_heads
        self.num_kv_heads = num_key_value_heads
        self.head_dim = hidden_size // num_attention_heads
        self.sm_scale = self.head_dim ** -0.5
        self.sliding_window = sliding_window

        self.sinks = nn.Parameter(torch.zeros(num_attention_heads))
        q_size = num_attention_heads * self.head_dim
        kv_size = num_key_value_heads * self.head_dim
        self.split = [q_size, kv_size, kv_size]
        self.qkv = nn.Linear(hidden_size, sum(self.split))
        self.out = nn.Linear(q_size, hidden_size)

    def sdpa(self, Q, K, V):
        # Q: (b, n, kv_heads, q_mult, d), K and V: (b, n, kv_heads, d)
        b, n, h, m, d = Q.shape
        QK = torch.einsum("bqhmd,bkhd->bhmqk", Q, K) * self.sm_scale

        mask = torch.triu(QK.new_full((n, n), float("-inf")), diagonal=1)
        if self.sliding_window > 0:
            mask = mask + torch.tril(QK.new_full((n, n), float("-inf")), diagonal=-self.sliding_window)
        QK = QK + mask

        S = self.sinks.to(QK.dtype).reshape(1, h, m, 1, 1).expand(b, -1, -1, n, -1)
        W = torch.softmax(torch.cat([QK, S], dim=-1), dim=-1)
        W = W[..., 1:]
        return torch.einsum("bhmqk,bkhd->bqhmd", W, V).reshape(b, n, h * m * d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).split(self.split, dim=-1)
        q = q.view(b, n, self.num_kv_heads, self.num_heads // self.num_kv_heads, self.head_dim)
        k = k.view(b, n, self.num_kv_heads, self.head_dim)
        v = v.view(b, n, self.num_kv_heads, self.head_dim)
        return self.out(self.sdpa(q, k, v))
