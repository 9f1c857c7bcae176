"""The lower diagonal of the sliding window is past - window instead of past - window + 1, so each query sees one key too many.

huggingface/transformers #26792 (2023)
https://github.com/huggingface/transformers/pull/26792
"""
import torch
import torch.nn as nn


def _build(rev):
    class AttentionMaskConverter:
        def __init__(self, sliding_window):
            self.sliding_window = sliding_window

        def make_causal_mask(self, tgt_len, past, dtype, device):
            mask = torch.full((tgt_len, tgt_len), torch.finfo(dtype).min, device=device)
            cond = torch.arange(tgt_len, device=device)
            mask.masked_fill_(cond < (cond + 1).view(tgt_len, 1), 0)
            mask = mask.to(dtype)
            if past > 0:
                mask = torch.cat([torch.zeros(tgt_len, past, dtype=dtype, device=device), mask], dim=-1)
            if self.sliding_window is not None:
                diagonal = past - self.sliding_window + (0 if rev == 1 else 1)
                context = 1 - torch.triu(torch.ones_like(mask, dtype=torch.int), diagonal=diagonal)
                mask.masked_fill_(context.bool(), torch.finfo(dtype).min)
            return mask[None, None]

    class MistralAttention(nn.Module):
        """Causal attention with a sliding window: each token sees sliding_window tokens, itself included.

        forward(hidden_states, past_key_value=None) -> (output, (keys, values)).
        """

        def __init__(self, hidden_size=64, num_heads=4, num_key_value_heads=2, sliding_window=4):
            super().__init__()
            self.num_heads, self.num_key_value_heads, self.head_dim = num_heads, num_key_value_heads, hidden_size // num_heads
            self.converter = AttentionMaskConverter(sliding_window)
            self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
            self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        def forward(self, hidden_states, past_key_value=None):
            B, T, _ = hidden_states.shape
            q = self.q_proj(hidden_states).view(B, T, -1, self.head_dim).transpose(1, 2)
            k = self.k_proj(hidden_states).view(B, T, -1, self.head_dim).transpose(1, 2)
            v = self.v_proj(hidden_states).view(B, T, -1, self.head_dim).transpose(1, 2)
            past = 0
            if past_key_value is not None:
                past = past_key_value[0].shape[2]
                k, v = torch.cat([past_key_value[0], k], 2), torch.cat([past_key_value[1], v], 2)
            n = self.num_heads // self.num_key_value_heads
            w = q @ k.repeat_interleave(n, 1).transpose(2, 3) / self.head_dim ** 0.5
            w = w + self.converter.make_causal_mask(T, past, w.dtype, w.device)
            w = w.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
            y = (w @ v.repeat_interleave(n, 1)).transpose(1, 2).reshape(B, T, -1)
            return self.o_proj(y), (k, v)

    torch.manual_seed(0)
    return MistralAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
