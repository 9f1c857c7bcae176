"""The fused branch returns before the sliding-window mask is applied, so local layers attend to the whole sequence.

keras-team/keras-hub #2186 (2025)
https://github.com/keras-team/keras-hub/issues/2186
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(fused):
    class CachedGemmaAttention(nn.Module):
        """Gemma 2 style local attention.

        forward(x, attention_mask=None): x (B, T, hidden_dim); attention_mask (B, T, T) bool, True where the query
        (row) may see the key (column); if None, causal. With use_sliding_window_attention a query sees only keys
        less than sliding_window_size positions before it (itself included).
        """

        def __init__(self, hidden_dim=48, num_query_heads=4, num_key_value_heads=2, sliding_window_size=4,
                     use_sliding_window_attention=True):
            super().__init__()
            self.num_query_heads = num_query_heads
            self.num_key_value_heads = num_key_value_heads
            self.head_dim = hidden_dim // num_query_heads
            self.sliding_window_size = sliding_window_size
            self.use_sliding_window_attention = use_sliding_window_attention
            self.query_dense = nn.Linear(hidden_dim, num_query_heads * self.head_dim, bias=False)
            self.key_dense = nn.Linear(hidden_dim, num_key_value_heads * self.head_dim, bias=False)
            self.value_dense = nn.Linear(hidden_dim, num_key_value_heads * self.head_dim, bias=False)
            self.output_dense = nn.Linear(num_query_heads * self.head_dim, hidden_dim, bias=False)

        def _mask_sliding_window(self, attention_mask):
            T = attention_mask.shape[-1]
            i = torch.arange(T, device=attention_mask.device)
            d = i[:, None] - i[None, :]
            return attention_mask & (d < self.sliding_window_size) & (d > -self.sliding_window_size)

        def _compute_attention(self, q, k, v, attention_mask):
            groups = self.num_query_heads // self.num_key_value_heads
            k = k.repeat_interleave(groups, dim=1)
            v = v.repeat_interleave(groups, dim=1)
            if fused == 1:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None])
            if self.use_sliding_window_attention:
                attention_mask = self._mask_sliding_window(attention_mask)
            if fused == 2:
                return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None])
            logits = (q @ k.transpose(-1, -2)) * self.head_dim ** -0.5
            logits = logits.masked_fill(~attention_mask[:, None], torch.finfo(logits.dtype).min)
            return logits.softmax(-1) @ v

        def forward(self, x, attention_mask=None):
            B, T, _ = x.shape
            if attention_mask is None:
                attention_mask = torch.ones(T, T, dtype=torch.bool, device=x.device).tril().expand(B, T, T)
            q = self.query_dense(x).view(B, T, self.num_query_heads, self.head_dim).transpose(1, 2)
            k = self.key_dense(x).view(B, T, self.num_key_value_heads, self.head_dim).transpose(1, 2)
            v = self.value_dense(x).view(B, T, self.num_key_value_heads, self.head_dim).transpose(1, 2)
            y = self._compute_attention(q, k, v, attention_mask)
            return self.output_dense(y.transpose(1, 2).reshape(B, T, -1))

    torch.manual_seed(0)
    return CachedGemmaAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
