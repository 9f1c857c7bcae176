from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class ImagePromptCrossAttention(nn.Module):
    """Cross-attention of a diffusion U-Net with an image prompt adapter.

    The context is ``[text tokens, image tokens]``; the last ``num_image_tokens`` entries come from the
    image encoder. Text and image are attended to separately with their own projections, and the
    image part is added with weight ``image_scale``.

    Args:
        hidden_states: feature map ``[B, C, H, W]``
        context: ``[B, text + num_image_tokens, context_dim]``
        text_mask: optional bool ``[B, text]``, True for real text tokens
    """

    def __init__(self, dim: int = 64, context_dim: int = 48, num_heads: int = 4, num_image_tokens: int = 4,
                 image_scale: float = 1.0, groups: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.num_image_tokens = num_image_tokens
        self.image_scale = image_scale
        self.norm = nn.GroupNorm(groups, dim, eps=1e-6)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(context_dim, dim, bias=False)
        self.to_v = nn.Linear(context_dim, dim, bias=False)
        self.to_k_ip = nn.Linear(context_dim, dim, bias=False)
        self.to_v_ip = nn.Linear(context_dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def _heads(self, x):
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, hidden_states: torch.Tensor, context: torch.Tensor, text_mask: Optional[torch.Tensor] = None):
        b, c, height, width = hidden_states.shape
        x = self.norm(hidden_states).flatten(2).transpose(1, 2)
        split = context.size(1) - self.num_image_tokens
        text, image = context[:, :split], context[:, split:]

        query = self._heads(self.to_q(x))

        key = self._heads(self.to_k(text))
        value = self._heads(self.to_v(text))
        mask = text_mask[:, None, None, :] if text_mask is not None else None
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

        ip_key = self._heads(self.to_k_ip(image))
        ip_value = self._heads(self.to_k_ip(image))
        out = out + self.image_scale * F.scaled_dot_product_attention(query, ip_key, ip_value)

        out = self.to_out(out.transpose(1, 2).flatten(2))
        return hidden_states + out.transpose(1, 2).reshape(b, c, height, width)
