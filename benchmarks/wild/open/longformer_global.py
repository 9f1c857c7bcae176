"""Weights and values of the global keys are detached, so the global part of the attention passes no gradient back.

allenai/longformer #201 (2021)
https://github.com/allenai/longformer/issues/201
"""
import torch
import torch.nn as nn


def _build(rev):
    class LEDSelfAttention(nn.Module):
        """Local window plus global tokens; forward(hidden_states).

        hidden_states (B, T, C). Each token sees the tokens at most attention_window away and the first
        num_global_tokens tokens of the row; global tokens see all tokens.
        """

        def __init__(self, embed_dim=32, num_heads=4, attention_window=2, num_global_tokens=2):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
            self.attention_window, self.num_global_tokens = attention_window, num_global_tokens
            self.query = nn.Linear(embed_dim, embed_dim)
            self.key = nn.Linear(embed_dim, embed_dim)
            self.value = nn.Linear(embed_dim, embed_dim)
            self.output = nn.Linear(embed_dim, embed_dim)

        def _compute_attn_output_with_global_indices(self, value, probs):
            g = self.num_global_tokens
            probs_only_global, value_only_global = probs[..., :g], value[:, :, :g]
            if rev == 1:
                probs_only_global, value_only_global = probs_only_global.detach(), value_only_global.detach()
            attn_output_only_global = torch.matmul(probs_only_global, value_only_global)
            return attn_output_only_global + torch.matmul(probs[..., g:], value[:, :, g:])

        def forward(self, hidden_states):
            B, T, C = hidden_states.shape
            q, k, v = (p(hidden_states).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.query, self.key, self.value))
            i = torch.arange(T, device=q.device)
            keep = (i[:, None] - i[None]).abs() <= self.attention_window
            keep = keep | (i < self.num_global_tokens)[None] | (i < self.num_global_tokens)[:, None]
            s = (q @ k.transpose(2, 3) / self.head_dim ** 0.5).masked_fill(~keep, torch.finfo(q.dtype).min)
            y = self._compute_attn_output_with_global_indices(v, s.softmax(-1))
            return self.output(y.transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return LEDSelfAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
