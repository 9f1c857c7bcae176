import torch
import torch.nn as nn
import torch.nn.functional as F


class ImageProjModel(nn.Module):
    """Projects a pooled CLIP image embedding to a few extra context tokens."""

    def __init__(self, cross_attention_dim=96, clip_embeddings_dim=128, clip_extra_context_tokens=4):
        super().__init__()
        self.cross_attention_dim = cross_attention_dim
        self.tokens = clip_extra_context_tokens
        self.proj = nn.Linear(clip_embeddings_dim, clip_extra_context_tokens * cross_attention_dim)
        self.norm = nn.LayerNorm(cross_attention_dim)

    def forward(self, image_embeds):
        t = self.proj(image_embeds).reshape(-1, self.tokens, self.cross_attention_dim)
        return self.norm(t)


class IPCrossAttention(nn.Module):
    r"""
    Decoupled cross attention for IP-Adapter on U-Net features [B, C, H, W].

    Args:
        query_dim: channels of the feature map.
        cross_attention_dim: channels of `encoder_hidden_states` (text tokens followed by image tokens).
        scale: weight of the image prompt.
        num_tokens: how many image tokens are at the end of `encoder_hidden_states`.
    """

    def __init__(self, query_dim=64, cross_attention_dim=96, num_heads=4, scale=1.0, num_tokens=4):
        super().__init__()
        self.heads = num_heads
        self.scale = scale
        self.num_tokens = num_tokens
        self.norm = nn.GroupNorm(16, query_dim, eps=1e-6)
        self.to_q = nn.Linear(query_dim, query_dim, bias=False)
        self.to_k = nn.Linear(cross_attention_dim, query_dim, bias=False)
        self.to_v = nn.Linear(cross_attention_dim, query_dim, bias=False)
        self.to_k_ip = nn.Linear(cross_attention_dim, query_dim, bias=False)
        self.to_v_ip = nn.Linear(cross_attention_dim, query_dim, bias=False)
        self.to_out = nn.Linear(query_dim, query_dim)

    def head_to_batch(self, t):
        b, n, c = t.shape
        return t.view(b, n, self.heads, c // self.heads).transpose(1, 2)

    def forward(self, hidden_states, encoder_hidden_states):
        residual = hidden_states
        batch_size, channel, height, width = hidden_states.shape
        hidden_states = self.norm(hidden_states)
        hidden_states = hidden_states.view(batch_size, channel, height * width).transpose(1, 2)

        end_pos = encoder_hidden_states.shape[1] - self.num_tokens
        text_states = encoder_hidden_states[:, :end_pos, :]
        ip_states = encoder_hidden_states[:, end_pos:, :]

        query = self.head_to_batch(self.to_q(hidden_states))
        key = self.head_to_batch(self.to_k(text_states))
        value = self.head_to_batch(self.to_v(text_states))
        out = F.scaled_dot_product_attention(query, key, value)

        # image prompt
        ip_key = self.head_to_batch(self.to_k_ip(ip_states))
        ip_value = self.head_to_batch(self.to_k_ip(ip_states))
        ip_out = F.scaled_dot_product_attention(query, ip_key, ip_value)

        out = out + self.scale * ip_out
        out = out.transpose(1, 2).reshape(batch_size, height * width, channel)
        out = self.to_out(out)
        out = out.transpose(1, 2).reshape(batch_size, channel, height, width)
        return out + residual
