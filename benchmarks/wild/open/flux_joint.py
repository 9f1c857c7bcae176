"""Joint attention of a diffusion transformer runs causally, so early tokens cannot see later patches.

ByteDance-Seed/VeOmni #74 (2025)
https://github.com/ByteDance-Seed/VeOmni/issues/74
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class FluxJointAttention(nn.Module):
        """Text and image tokens attend to all of both (no mask, no order).

        forward(hidden_states_a, hidden_states_b): image (B, N, C), text (B, M, C); returns the pair.
        """

        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads = num_heads
            self.a_to_qkv = nn.Linear(dim, dim * 3)
            self.b_to_qkv = nn.Linear(dim, dim * 3)
            self.norm_q = nn.RMSNorm(dim // num_heads)
            self.norm_k = nn.RMSNorm(dim // num_heads)
            self.a_to_out = nn.Linear(dim, dim)
            self.b_to_out = nn.Linear(dim, dim)

        def forward(self, hidden_states_a, hidden_states_b):
            def split(t):
                return t.view(t.shape[0], -1, 3, self.num_heads, t.shape[-1] // 3 // self.num_heads).permute(2, 0, 3, 1, 4)
            qa, ka, va = split(self.a_to_qkv(hidden_states_a))
            qb, kb, vb = split(self.b_to_qkv(hidden_states_b))
            q, k, v = torch.cat([qb, qa], 2), torch.cat([kb, ka], 2), torch.cat([vb, va], 2)
            y = F.scaled_dot_product_attention(self.norm_q(q), self.norm_k(k), v, is_causal=rev == 1)
            y = y.transpose(1, 2).flatten(2)
            M = hidden_states_b.shape[1]
            return self.a_to_out(y[:, M:]), self.b_to_out(y[:, :M])

    class DiTBlock(nn.Module):
        """adaLN-modulated joint block; forward(hidden_states_a, hidden_states_b, temb), temb (B, C)."""

        def __init__(self, dim=32):
            super().__init__()
            self.norm = nn.LayerNorm(dim, elementwise_affine=False)
            self.mod = nn.Linear(dim, 6 * dim)
            self.attn = FluxJointAttention(dim)

        def forward(self, hidden_states_a, hidden_states_b, temb):
            sa, ca, ga, sb, cb, gb = self.mod(F.silu(temb))[:, None].chunk(6, dim=-1)
            a, b = self.attn(self.norm(hidden_states_a) * (1 + ca) + sa, self.norm(hidden_states_b) * (1 + cb) + sb)
            return hidden_states_a + ga * a, hidden_states_b + gb * b

    torch.manual_seed(0)
    return DiTBlock()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 9, 32), torch.randn(2, 5, 32), torch.randn(2, 32)), {}
