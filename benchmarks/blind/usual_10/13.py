import torch
from torch import nn


class SinkAttention(nn.Module):
    """Causal attention with a learned sink logit per head.

    The sink takes part in the softmax and has no value, so a head may attend to "nothing" and
    the weights over the real tokens add up to less than one.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, num_kv_heads: int = 2):
        super().__init__()
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, num_heads * self.head_dim)
        self.k_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.v_proj = nn.Linear(hidden_size, num_kv_heads * self.head_dim)
        self.o_proj = nn.Linear(num_heads * self.head_dim, hidden_size)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def forward(self, hidden_states):
        b, t, _ = hidden_states.shape
        groups = self.num_heads // self.num_kv_heads
        q = self.q_proj(hidden_states).view(b, t, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(b, t, self.num_kv_heads, self.head_dim).transpose(1, 2)
        k = k.repeat_interleave(groups, dim=1)
        v = v.repeat_interleave(groups, dim=1)

        logits = torch.matmul(q, k.mT) * self.head_dim ** -0.5
        future = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(diagonal=1)
        logits = logits.masked_fill(future, float("-inf"))

        sinks = self.sinks.view(1, -1, 1, 1).expand(b, -1, t, 1)
        logits = torch.cat([logits, sinks], dim=-1)
        logits = logits - logits.amax(dim=-1, keepdim=True)
        probs = logits.softmax(dim=-1)[..., :-1]

        out = torch.matmul(probs, v)
        return self.o_proj(out.transpose(1, 2).reshape(b, t, -1))
