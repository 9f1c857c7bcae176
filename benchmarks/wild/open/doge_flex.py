"""A 0/1 mask is added to the scores as if it were 0 and -inf.

HKUSTDial/flash-sparse-attention #146 (2025)
https://github.com/HKUSTDial/flash-sparse-attention/issues/146
"""
import torch
import torch.nn as nn


def _build(rev):
    class DogeAttention(nn.Module):
        """forward(hidden_states, attention_mask=None): attention_mask (B, T), 1 keep and 0 padding; causal."""

        def __init__(self, hidden_size=32, num_heads=4):
            super().__init__()
            self.num_heads, self.scaling = num_heads, (hidden_size // num_heads) ** -0.5
            self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        def forward(self, hidden_states, attention_mask=None):
            B, T, C = hidden_states.shape
            q, k, v = (p(hidden_states).view(B, T, self.num_heads, -1).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            causal_mask = torch.ones(T, T, dtype=q.dtype, device=q.device).tril()[None, None]
            if attention_mask is not None:
                causal_mask = causal_mask * attention_mask[:, None, None, :].to(q.dtype)
            if rev == 2:
                causal_mask = torch.zeros_like(causal_mask).masked_fill(causal_mask == 0, torch.finfo(q.dtype).min)

            def score_mod(score):
                return score + causal_mask
            w = score_mod(q @ k.transpose(-1, -2) * self.scaling).softmax(dim=-1)
            return self.o_proj((w @ v).transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return DogeAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
