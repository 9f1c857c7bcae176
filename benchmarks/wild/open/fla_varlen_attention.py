"""Boundaries given in cu_seqlens are overwritten by those of the padding mask, so packed samples attend to each other.

fla-org/flash-linear-attention #842 (2026)
https://github.com/fla-org/flash-linear-attention/pull/842
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def get_unpad_data(attention_mask):
    """Indices of the valid tokens of the flattened batch and the cumulative lengths of its rows."""
    lens = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    return indices, F.pad(lens.cumsum(0, dtype=torch.int32), (1, 0))


def pad_input(hidden_states, indices, batch_size, seq_len):
    output = hidden_states.new_zeros(batch_size * seq_len, *hidden_states.shape[1:])
    output[indices] = hidden_states
    return output.view(batch_size, seq_len, *hidden_states.shape[1:])


def flash_attn_varlen_func(q, k, v, cu_seqlens, causal=True):
    """q, k, v: (total, heads, head_dim), the sequences [cu_seqlens[i], cu_seqlens[i + 1]) one after the other."""
    outs = []
    for start, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        qi, ki, vi = (t[start:end].transpose(0, 1) for t in (q, k, v))
        outs.append(F.scaled_dot_product_attention(qi, ki, vi, is_causal=causal).transpose(0, 1))
    return torch.cat(outs)


class _AttentionBase(nn.Module):
    def __init__(self, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def qkv(self, hidden_states):
        return (proj(hidden_states).unflatten(-1, (self.num_heads, self.head_dim))
                for proj in (self.q_proj, self.k_proj, self.v_proj))


def broken() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, hidden_states, attention_mask=None, **kwargs):
            """
            hidden_states: [batch, seq, hidden]; attention is causal
            attention_mask: 0-1 matrix of shape [batch, seq], 0 for padding tokens
            cu_seqlens: cumulative lengths of the samples packed in the flattened batch, e.g. [0, 4, 7, 10]
            """
            batch_size, q_len, _ = hidden_states.size()
            cu_seqlens = kwargs.get('cu_seqlens')
            q, k, v = (t.flatten(0, 1) for t in self.qkv(hidden_states))

            indices = None
            if attention_mask is not None:
                indices, cu_seqlens = get_unpad_data(attention_mask[:, -q_len:])
                q, k, v = q[indices], k[indices], v[indices]
            elif cu_seqlens is None:
                cu_seqlens = torch.arange(batch_size + 1, device=q.device) * q_len

            o = flash_attn_varlen_func(q, k, v, cu_seqlens)
            o = pad_input(o, indices, batch_size, q_len) if indices is not None else o.view(batch_size, q_len, *o.shape[1:])
            return self.o_proj(o.flatten(2))

    torch.manual_seed(0)
    return Attention()


def fixed() -> nn.Module:
    class Attention(_AttentionBase):
        def forward(self, hidden_states, attention_mask=None, **kwargs):
            """
            hidden_states: [batch, seq, hidden]; attention is causal
            attention_mask: 0-1 matrix of shape [batch, seq], 0 for padding tokens
            cu_seqlens: cumulative lengths of the samples packed in the flattened batch, e.g. [0, 4, 7, 10]
            """
            batch_size, q_len, _ = hidden_states.size()
            cu_seqlens = kwargs.get('cu_seqlens')
            q, k, v = (t.flatten(0, 1) for t in self.qkv(hidden_states))

            indices = None
            if cu_seqlens is None and attention_mask is not None:
                indices, cu_seqlens = get_unpad_data(attention_mask[:, -q_len:])
                q, k, v = q[indices], k[indices], v[indices]
            elif cu_seqlens is None:
                cu_seqlens = torch.arange(batch_size + 1, device=q.device) * q_len

            o = flash_attn_varlen_func(q, k, v, cu_seqlens)
            o = pad_input(o, indices, batch_size, q_len) if indices is not None else o.view(batch_size, q_len, *o.shape[1:])
            return self.o_proj(o.flatten(2))

    torch.manual_seed(0)
    return Attention()


def example() -> tuple[tuple, dict]:
    x = torch.randn(1, 10, 32, generator=torch.Generator().manual_seed(1))
    return (x,), {"attention_mask": torch.ones(1, 10, dtype=torch.long),
                  "cu_seqlens": torch.tensor([0, 4, 7, 10], dtype=torch.int32)}
