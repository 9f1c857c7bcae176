"""A fused QKV weight stored head by head (q0 k0 v0 q1 k1 v1 ...) is split in three with a plain chunk.

awslabs/slapo #46 (2023)
https://github.com/awslabs/slapo/pull/46
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def fuse_qkv_weight(q_weight, k_weight, v_weight, num_heads):
    """Fuse separate projections into Megatron-LM's layout: the rows of each head are [query | key | value]."""
    q, k, v = (w.view(num_heads, -1, w.shape[-1]) for w in (q_weight, k_weight, v_weight))
    return torch.cat((q, k, v), dim=1).reshape(-1, q_weight.shape[-1])


class _FusedSelfAttentionBase(nn.Module):
    """Causal self-attention whose query, key and value projections run as one matrix product."""

    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.fused_linear = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    @classmethod
    def from_unfused(cls, q_proj, k_proj, v_proj, out_proj, num_attention_heads):
        module = cls(q_proj.in_features, num_attention_heads)
        with torch.no_grad():
            module.fused_linear.weight.copy_(
                fuse_qkv_weight(q_proj.weight, k_proj.weight, v_proj.weight, num_attention_heads))
        module.out_proj.load_state_dict(out_proj.state_dict())
        return module

    def forward(self, hidden_states):
        q, k, v = self.qkv(hidden_states)
        context_layer = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous().flatten(2)
        return self.out_proj(context_layer)


def _projections(hidden_size):
    return [nn.Linear(hidden_size, hidden_size, bias=i == 3) for i in range(4)]


def broken() -> nn.Module:
    class FusedSelfAttention(_FusedSelfAttentionBase):
        def transpose_for_scores(self, x):
            """(b, s, h * d) -> (b, h, s, d)"""
            new_x_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
            return x.view(new_x_shape).permute(0, 2, 1, 3)

        def qkv(self, hidden_states):
            q, k, v = self.fused_linear(hidden_states).chunk(3, dim=-1)
            return self.transpose_for_scores(q), self.transpose_for_scores(k), self.transpose_for_scores(v)

    torch.manual_seed(0)
    return FusedSelfAttention.from_unfused(*_projections(32), num_attention_heads=4)


def fixed() -> nn.Module:
    class FusedSelfAttention(_FusedSelfAttentionBase):
        def transpose_for_scores(self, x):
            """(b, s, h * 3 * d) -> (b, h, s, 3 * d)"""
            new_x_shape = x.size()[:-1] + (self.num_attention_heads, 3 * self.attention_head_size)
            return x.view(new_x_shape).permute(0, 2, 1, 3)

        def qkv(self, hidden_states):
            q, k, v = self.transpose_for_scores(self.fused_linear(hidden_states)).chunk(3, dim=-1)
            return q, k, v

    torch.manual_seed(0)
    return FusedSelfAttention.from_unfused(*_projections(32), num_attention_heads=4)
