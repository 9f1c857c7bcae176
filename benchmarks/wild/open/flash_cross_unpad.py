"""Cross-attention unpads the queries with the key padding mask, so most query positions come back as zeros.

vllm-project/vllm-omni #5865 (2026)
https://github.com/vllm-project/vllm-omni/issues/5865
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _get_unpad_data(attention_mask):
    seqlens_in_batch = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(attention_mask.flatten(), as_tuple=False).flatten()
    cu_seqlens = F.pad(torch.cumsum(seqlens_in_batch, dim=0, dtype=torch.int32), (1, 0))
    return indices, cu_seqlens


def index_first_axis(tensor, indices):
    return tensor.reshape(-1, *tensor.shape[2:])[indices]


def pad_input(hidden_states, indices, batch, seqlen):
    output = torch.zeros(batch * seqlen, *hidden_states.shape[1:], dtype=hidden_states.dtype, device=hidden_states.device)
    output[indices] = hidden_states
    return output.view(batch, seqlen, *hidden_states.shape[1:])


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k):
    """q, k, v: (total, heads, head_dim); sequence i attends within its own slice of the packed keys."""
    outs = []
    for i in range(len(cu_seqlens_q) - 1):
        qi, ki, vi = (t[c[i]:c[i + 1]].transpose(0, 1)
                      for t, c in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k)))
        outs.append(F.scaled_dot_product_attention(qi, ki, vi).transpose(0, 1))
    return torch.cat(outs)


class _CrossAttentionBase(nn.Module):
    """Prompt cross-attention of a diffusion transformer: image tokens query padded text tokens."""

    def __init__(self, dim, num_heads, context_dim):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(context_dim, dim)
        self.to_v = nn.Linear(context_dim, dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, hidden_states, encoder_hidden_states, encoder_attention_mask=None):
        """
        hidden_states: [batch, image tokens, dim]
        encoder_hidden_states: [batch, text tokens, context_dim]
        encoder_attention_mask: [batch, text tokens] bool, True for real text tokens, False for padding
        """
        query = self.to_q(hidden_states).unflatten(-1, (self.num_heads, self.head_dim))
        key = self.to_k(encoder_hidden_states).unflatten(-1, (self.num_heads, self.head_dim))
        value = self.to_v(encoder_hidden_states).unflatten(-1, (self.num_heads, self.head_dim))
        if encoder_attention_mask is None:
            out = F.scaled_dot_product_attention(
                query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)).transpose(1, 2)
        else:
            out = self._forward_varlen_masked(query, key, value, encoder_attention_mask)
        return self.to_out(out.flatten(2))

    def _forward_varlen_masked(self, query, key, value, attention_mask):
        batch, query_length = query.shape[:2]
        q, k, v, indices_q, (cu_q, cu_k) = self._upad_input(query, key, value, attention_mask, query_length)
        out_unpad = flash_attn_varlen_func(q, k, v, cu_q, cu_k)
        return pad_input(out_unpad, indices_q, batch, query_length)


def broken() -> nn.Module:
    class CrossAttention(_CrossAttentionBase):
        def _upad_input(self, query_layer, key_layer, value_layer, attention_mask, query_length):
            indices_k, cu_seqlens_k = _get_unpad_data(attention_mask)
            batch_size, kv_seq_len = key_layer.shape[:2]
            key_layer = index_first_axis(key_layer, indices_k)
            value_layer = index_first_axis(value_layer, indices_k)
            if query_length == kv_seq_len:
                query_layer = index_first_axis(query_layer, indices_k)
                cu_seqlens_q, indices_q = cu_seqlens_k, indices_k
            elif query_length == 1:
                cu_seqlens_q = torch.arange(batch_size + 1, dtype=torch.int32, device=query_layer.device)
                indices_q = cu_seqlens_q[:-1].long()
                query_layer = query_layer.squeeze(1)
            else:
                # The -q_len: slice assumes left padding.
                attention_mask = attention_mask[:, -query_length:]
                indices_q, cu_seqlens_q = _get_unpad_data(attention_mask)
                query_layer = index_first_axis(query_layer, indices_q)
            return query_layer, key_layer, value_layer, indices_q, (cu_seqlens_q, cu_seqlens_k)

    torch.manual_seed(0)
    return CrossAttention(32, 4, 24)


def fixed() -> nn.Module:
    class CrossAttention(_CrossAttentionBase):
        def _upad_input(self, query_layer, key_layer, value_layer, attention_mask, query_length):
            indices_k, cu_seqlens_k = _get_unpad_data(attention_mask)
            batch_size, kv_seq_len = key_layer.shape[:2]
            key_layer = index_first_axis(key_layer, indices_k)
            value_layer = index_first_axis(value_layer, indices_k)
            # The mask belongs to the keys: every query is kept.
            cu_seqlens_q = torch.arange(batch_size + 1, dtype=torch.int32, device=query_layer.device) * query_length
            indices_q = torch.arange(batch_size * query_length, device=query_layer.device)
            query_layer = query_layer.flatten(0, 1)
            return query_layer, key_layer, value_layer, indices_q, (cu_seqlens_q, cu_seqlens_k)

    torch.manual_seed(0)
    return CrossAttention(32, 4, 24)


def example() -> tuple[tuple, dict]:
    generator = torch.Generator().manual_seed(1)
    hidden_states, text = torch.randn(2, 12, 32, generator=generator), torch.randn(2, 7, 24, generator=generator)
    return (hidden_states, text), {"encoder_attention_mask": torch.arange(7) < torch.tensor([[7], [4]])}
