"""Packed sequences are detected from position_ids only when no attention_mask is passed, so an all-ones mask lets documents see each other.

huggingface/transformers #46634 (2026)
https://github.com/huggingface/transformers/pull/46634
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def find_packed_sequence_indices(position_ids):
    """The index of each token's document: a new one starts where the positions do not go up by one."""
    first = position_ids[:, :1] - 1
    diff = torch.diff(position_ids, prepend=first, dim=-1)
    return (diff != 1).cumsum(-1)


def _build(rev):
    def create_causal_mask(x, attention_mask, position_ids):
        B, T, _ = x.shape
        packed = None
        gate = position_ids is not None
        if rev == 1:
            gate = gate and attention_mask is None
        if gate:
            packed = find_packed_sequence_indices(position_ids)
        keep = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()[None, None]
        if attention_mask is not None:
            keep = keep & attention_mask[:, None, None, :].bool()
        if packed is not None:
            keep = keep & (packed[:, None, :, None] == packed[:, None, None, :])
        return keep | torch.eye(T, dtype=torch.bool, device=x.device)

    class DecoderLayer(nn.Module):
        """Causal decoder layer with rotary positions.

        forward(hidden_states, attention_mask=None, position_ids=None): attention_mask (B, T), 1 token, 0 padding;
        position_ids (B, T): where they restart, another document begins (several documents packed in one row).
        Tokens attend only to earlier tokens of their own document.
        """

        def __init__(self, hidden_size=32, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
            self.input_layernorm = nn.RMSNorm(hidden_size)
            self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.register_buffer("inv_freq", 1e4 ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim),
                                 persistent=False)

        def rope(self, x, position_ids):
            f = position_ids[:, None, :, None].float() * self.inv_freq
            cos, sin = torch.cat((f, f), -1).cos(), torch.cat((f, f), -1).sin()
            x1, x2 = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-x2, x1), -1) * sin

        def forward(self, hidden_states, attention_mask=None, position_ids=None):
            B, T, C = hidden_states.shape
            mask = create_causal_mask(hidden_states, attention_mask, position_ids)
            pos = position_ids if position_ids is not None else torch.arange(T, device=mask.device).expand(B, T)
            h = self.input_layernorm(hidden_states)
            q, k, v = (p(h).view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            y = F.scaled_dot_product_attention(self.rope(q, pos), self.rope(k, pos), v, attn_mask=mask)
            return hidden_states + self.o_proj(y.transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return DecoderLayer()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    pos = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 1, 2], [0, 1, 0, 1, 2, 3, 4, 5, 6, 7]])
    return (torch.randn(2, 10, 32),), {"attention_mask": torch.ones(2, 10, dtype=torch.long), "position_ids": pos}
