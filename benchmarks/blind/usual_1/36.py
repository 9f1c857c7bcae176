import torch
import torch.nn as nn
import torch.nn.functional as F


class SpatialSelfAttention(nn.Module):
    """Self-attention over the pixels of a feature map, for diffusion U-Nets.

    Input and output: (B, C, H, W).
    """

    def __init__(self, channels=64, num_heads=4, norm_num_groups=8, dropout=0.1, eps=1e-5, rescale_output_factor=1.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.rescale_output_factor = rescale_output_factor
        self.group_norm = nn.GroupNorm(norm_num_groups, channels, eps=eps)
        self.to_q = nn.Linear(channels, channels)
        self.to_k = nn.Linear(channels, channels)
        self.to_v = nn.Linear(channels, channels)
        self.to_out = nn.Linear(channels, channels)

    def forward(self, hidden_states):
        residual = hidden_states
        batch, channel, height, width = hidden_states.shape

        hidden_states = self.group_norm(hidden_states)
        hidden_states = hidden_states.view(batch, channel, height * width).transpose(1, 2)

        def split_heads(t):
            return t.view(batch, -1, self.num_heads, channel // self.num_heads).transpose(1, 2)

        query = split_heads(self.to_q(hidden_states))
        key = split_heads(self.to_k(hidden_states))
        value = split_heads(self.to_v(hidden_states))

        hidden_states = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout, is_causal=False)
        hidden_states = hidden_states.transpose(1, 2).reshape(batch, height * width, channel)
        hidden_states = self.to_out(hidden_states)

        hidden_states = hidden_states.transpose(1, 2).reshape(batch, channel, height, width)
        return (hidden_states + residual) / self.rescale_output_factor
