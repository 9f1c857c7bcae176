import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Grouped-query causal attention with one learned sink logit per head.

    The sink takes part in the softmax and carries no value, so the weights over the
    real tokens may sum to less than one ("attend to nothing").
    """

    def __init__(self, hidden_size=64, num_heads=8, num_kv_heads=2, head_dim=16, sliding_window=None):
        super().__init__()
        assert num_heads % num_kv_heads == 0
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.sliding_window = sliding_window
        self.sm_scale = head_dim ** -0.5
        self.sinks = nn.Parameter(torch.zeros(num_heads))
        self.q_proj = nn.Linear(hidden_size, num_heads * head_dim)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * head_dim)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * head_dim)
        self.o_proj = nn.Linear(num_heads * head_dim, hidden_size)

    def forward(self, x):
        B, T, _ = x.shape
        groups = self.num_heads // self.num_kv_heads
        Q = self.q_proj(x).view(B, T, self.num_kv_heads, groups, self.head_dim)
        K = self.k_proj(x).view(B, T, self.num_kv_heads, 1, self.head_dim).expand(-1, -1, -1, groups, -1)
        V = self.v_proj(x).view(B, T, self.num_kv_heads, 1, self.head_dim).expand(-1, -1, -1, groups, -1)

        QK = torch.einsum("bqhgd,bkhgd->bhgqk", Q, K) * self.sm_scale
        mask = torch.triu(QK.new_full((T, T), float("-inf")), diagonal=1)
        if self.sliding_window:
            mask = mask + torch.tril(QK.new_full((T, T), float("-inf")), diagonal=-self.sliding_window)
        QK = QK + mask

        S = self.sinks.view(1, self.num_kv_heads, groups, 1, 1).expand(B, -1, -1, T, 1)
        W = torch.softmax(torch.cat([QK, S], dim=-1), dim=-1)
        W = W[..., :-1]
        out = torch.einsum("bhgqk,bkhgd->bqhgd", W, V)
        return self.o_proj(out.reshape(B, T, self.num_heads * self.head_dim))
