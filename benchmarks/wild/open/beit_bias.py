"""The kernel folds the scale into the exponent, so the additive mask (a position bias) is multiplied by the scale as well.

tenstorrent/tt-metal #42891 (2026)
https://github.com/tenstorrent/tt-metal/pull/42891
"""
import torch
import torch.nn as nn


def _build(rev):
    def scaled_dot_product_attention(q, k, v, attn_mask, scale):
        qk = q @ k.transpose(-2, -1)
        if attn_mask is not None:
            qk = qk + (attn_mask if rev == 1 else attn_mask / scale)
        m = qk.amax(dim=-1, keepdim=True)
        p = torch.exp((qk - m) * scale)
        return (p / p.sum(dim=-1, keepdim=True)) @ v

    class BeitSelfAttention(nn.Module):
        """Bidirectional attention with a learned relative position bias added to the scaled scores.

        forward(hidden_states), (B, N, C).
        """

        def __init__(self, hidden_size=64, num_attention_heads=4, max_len=32):
            super().__init__()
            self.num_attention_heads, self.head_dim = num_attention_heads, hidden_size // num_attention_heads
            self.query = nn.Linear(hidden_size, hidden_size)
            self.key = nn.Linear(hidden_size, hidden_size, bias=False)
            self.value = nn.Linear(hidden_size, hidden_size)
            self.dense = nn.Linear(hidden_size, hidden_size)
            self.max_len = max_len
            self.relative_position_bias_table = nn.Parameter(torch.randn(2 * max_len - 1, num_attention_heads))

        def forward(self, hidden_states):
            B, N, C = hidden_states.shape
            q, k, v = (p(hidden_states).view(B, N, self.num_attention_heads, self.head_dim).transpose(1, 2)
                       for p in (self.query, self.key, self.value))
            i = torch.arange(N, device=q.device)
            bias = self.relative_position_bias_table[i[:, None] - i[None] + self.max_len - 1].permute(2, 0, 1)[None]
            y = scaled_dot_product_attention(q, k, v, bias, self.head_dim ** -0.5)
            return self.dense(y.transpose(1, 2).reshape(B, N, C))

    torch.manual_seed(0)
    return BeitSelfAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
