import torch
import torch.nn as nn
import torch.nn.functional as F


class ImagePromptCrossAttention(nn.Module):
    """Decoupled cross-attention of a diffusion U-Net on text and on an image prompt.

    The last ``num_image_tokens`` entries of the context are image tokens. They have their own key and value
    projection, and their contribution is added with the weight ``image_scale``.

    Args:
        channels: channels of the feature map.
        context_dim: width of the context.
        num_heads: number of heads.
        num_image_tokens: image tokens at the end of the context.
        image_scale: weight of the image prompt.
    """

    def __init__(self, channels=128, context_dim=96, num_heads=4, num_image_tokens=4, image_scale=1.0, groups=32):
        super().__init__()
        self.num_heads = num_heads
        self.num_image_tokens = num_image_tokens
        self.image_scale = image_scale
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(context_dim, channels, bias=False)
        self.to_v = nn.Linear(context_dim, channels, bias=False)
        self.to_k_ip = nn.Linear(context_dim, channels, bias=False)
        self.to_v_ip = nn.Linear(context_dim, channels, bias=False)
        self.to_out = nn.Linear(channels, channels)

    def _heads(self, t):
        b, n, c = t.shape
        return t.view(b, n, self.num_heads, c // self.num_heads).transpose(1, 2)

    def forward(self, x, context):
        """x: [B, C, H, W]; context: [B, text + image tokens, context_dim]."""
        b, c, h, w = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        end = context.shape[1] - self.num_image_tokens
        text, image = context[:, :end], context[:, end:]

        query = self._heads(self.to_q(tokens))
        key = self._heads(self.to_k(text))
        value = self._heads(self.to_v(text))
        hidden = F.scaled_dot_product_attention(query, key, value)

        ip_key = self._heads(self.to_k_ip(image))
        ip_value = self._heads(self.to_k_ip(image))
        ip_hidden = F.scaled_dot_product_attention(query, ip_key, ip_value)

        hidden = hidden + self.image_scale * ip_hidden
        hidden = self.to_out(hidden.transpose(1, 2).reshape(b, h * w, c))
        return x + hidden.transpose(1, 2).reshape(b, c, h, w)
