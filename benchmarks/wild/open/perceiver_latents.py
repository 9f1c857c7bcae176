"""The scores are divided by head_dim ** -0.5, which multiplies them by the root of the head width instead of dividing.

esceptico/perceiver-io #9 (2021)
https://github.com/esceptico/perceiver-io/issues/9
"""
import torch
import torch.nn as nn


def _build(rev):
    class MultiHeadAttention(nn.Module):
        """forward(inputs_kv, inputs_q, attention_mask=None): attention_mask (B, K), 1 keep and 0 drop."""

        def __init__(self, kv_dim, q_dim, *, qk_out_dim, v_out_dim, output_dim, num_heads=4, dropout=0.0):
            super().__init__()
            self.num_heads = num_heads
            self.qk_head_dim = qk_out_dim // num_heads
            self.v_head_dim = v_out_dim // num_heads
            self.k = nn.Linear(kv_dim, qk_out_dim)
            self.q = nn.Linear(q_dim, qk_out_dim)
            self.v = nn.Linear(kv_dim, v_out_dim)
            self.projection = nn.Linear(v_out_dim, output_dim)
            self.dropout = nn.Dropout(dropout)
            self.scale = self.qk_head_dim ** -0.5

        def transform_for_scores(self, x, head_dim):
            b, n, _ = x.size()
            return x.view(b, n, self.num_heads, head_dim).permute(0, 2, 1, 3)

        def forward(self, inputs_kv, inputs_q, attention_mask=None):
            k = self.transform_for_scores(self.k(inputs_kv), self.qk_head_dim)
            q = self.transform_for_scores(self.q(inputs_q), self.qk_head_dim)
            v = self.transform_for_scores(self.v(inputs_kv), self.v_head_dim)
            attention = q @ k.transpose(-2, -1)
            attention = attention / self.scale if rev == 1 else attention * self.scale
            if attention_mask is not None:
                attention = attention.masked_fill(attention_mask[:, None, None, :] == 0,
                                                  torch.finfo(attention.dtype).min)
            weighted = self.dropout(attention.softmax(dim=-1)) @ v
            b, h, n, d = weighted.shape
            return self.projection(weighted.permute(0, 2, 1, 3).reshape(b, n, h * d))

    class PerceiverEncoder(nn.Module):
        """forward(x, attention_mask=None): x (B, K, 32) -> latents (B, 6, 48)."""

        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(6, 48))
            self.kv_norm = nn.LayerNorm(32)
            self.q_norm = nn.LayerNorm(48)
            self.attention = MultiHeadAttention(32, 48, qk_out_dim=48, v_out_dim=32, output_dim=48)
            self.mlp = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 96), nn.GELU(), nn.Linear(96, 48))

        def forward(self, x, attention_mask=None):
            q = self.latents.expand(x.shape[0], -1, -1)
            q = q + self.attention(self.kv_norm(x), self.q_norm(q), attention_mask)
            return q + self.mlp(q)

    torch.manual_seed(0)
    return PerceiverEncoder()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    mask = (torch.arange(9)[None] < torch.tensor([9, 6])[:, None]).long()
    return (torch.randn(2, 9, 32),), {"attention_mask": mask}
