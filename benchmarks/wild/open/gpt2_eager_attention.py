"""Future positions get the finite score -1e4, which real scores can fall below, so the future wins the softmax.

karpathy/minGPT #75 (2022)
https://github.com/karpathy/minGPT/issues/75
"""
import torch
import torch.nn as nn


class _GPT2AttentionBase(nn.Module):
    def __init__(self, hidden_size, num_heads, max_positions=64):
        super().__init__()
        self.register_buffer(
            "bias",
            torch.tril(torch.ones((max_positions, max_positions), dtype=torch.bool)).view(
                1, 1, max_positions, max_positions
            ),
            persistent=False,
        )
        self.embed_dim = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)

    def _split_heads(self, tensor):
        new_shape = tensor.size()[:-1] + (self.num_heads, self.head_dim)
        return tensor.view(new_shape).permute(0, 2, 1, 3)  # (batch, head, seq_length, head_features)

    def _merge_heads(self, tensor):
        tensor = tensor.permute(0, 2, 1, 3).contiguous()
        return tensor.view(tensor.size()[:-2] + (self.num_heads * self.head_dim,))

    def forward(self, hidden_states, attention_mask=None):
        query, key, value = self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        query, key, value = self._split_heads(query), self._split_heads(key), self._split_heads(value)
        attn_output, attn_weights = self._attn(query, key, value, attention_mask)
        return self.resid_dropout(self.c_proj(self._merge_heads(attn_output)))


def broken() -> nn.Module:
    class GPT2Attention(_GPT2AttentionBase):
        """Causal self-attention; attention_mask is additive, [batch, 1, 1, key], 0 or a large negative number."""

        def _attn(self, query, key, value, attention_mask=None):
            attn_weights = torch.matmul(query, key.transpose(-1, -2)) / (value.size(-1) ** 0.5)

            # if only "normal" attention layer implements causal mask
            query_length, key_length = query.size(-2), key.size(-2)
            causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]
            mask_value = torch.tensor(-1e4, dtype=attn_weights.dtype, device=attn_weights.device)
            attn_weights = torch.where(causal_mask, attn_weights, mask_value)

            if attention_mask is not None:
                attn_weights = attn_weights + attention_mask

            attn_weights = nn.functional.softmax(attn_weights, dim=-1)
            attn_weights = self.attn_dropout(attn_weights)
            return torch.matmul(attn_weights, value), attn_weights

    torch.manual_seed(0)
    return GPT2Attention(32, 4)


def fixed() -> nn.Module:
    class GPT2Attention(_GPT2AttentionBase):
        """Causal self-attention; attention_mask is additive, [batch, 1, 1, key], 0 or a large negative number."""

        def _attn(self, query, key, value, attention_mask=None):
            attn_weights = torch.matmul(query, key.transpose(-1, -2)) / (value.size(-1) ** 0.5)

            # if only "normal" attention layer implements causal mask
            query_length, key_length = query.size(-2), key.size(-2)
            causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]
            mask_value = torch.tensor(float("-inf"), dtype=attn_weights.dtype, device=attn_weights.device)
            attn_weights = torch.where(causal_mask, attn_weights, mask_value)

            if attention_mask is not None:
                attn_weights = attn_weights + attention_mask

            attn_weights = nn.functional.softmax(attn_weights, dim=-1)
            attn_weights = self.attn_dropout(attn_weights)
            return torch.matmul(attn_weights, value), attn_weights

    torch.manual_seed(0)
    return GPT2Attention(32, 4)
