import torch
import torch.nn as nn


class SinkAttention(nn.Module):
    """Causal attention with a learned sink per head.

    Every head owns one extra logit that takes part in the softmax but has no value, so
    the visible weights of a row may sum to less than one and a head can attend to nothing.
    """

    def __init__(self, hidden_size=64, num_heads=8, num_kv_heads=2):
        super().__init__()
        self.head_dim = hidden_size // num_heads
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.shape
        groups = self.num_heads // self.num_kv_heads

        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)

        logits = torch.matmul(q, k.transpose(2, 3)) * self.head_dim ** -0.5
        future = torch.ones(q_len, q_len, dtype=torch.bool, device=q.device).triu(1)
        logits = logits.masked_fill(future, float("-inf"))

        sinks = self.sinks.view(1, -1, 1, 1).expand(bsz, -1, q_len, 1)
        combined = torch.cat([logits, sinks], dim=-1)
        combined = combined - combined.max(dim=-1, keepdim=True).values
        probs = combined.softmax(dim=-1)[..., :-1]

        out = torch.matmul(probs, v).transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out)
