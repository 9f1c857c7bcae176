import torch
import torch.nn as nn
import torch.nn.functional as F


class ImageTextCrossAttention(nn.Module):
    """Image tokens query a sequence of text embeddings.

    Args:
        image_dim: width of the image tokens (and of the output)
        text_dim: width of the text encoder
        hidden_dim: total width of the heads
        heads: number of heads
    """

    def __init__(self, image_dim=64, text_dim=48, hidden_dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm_image = nn.LayerNorm(image_dim)
        self.norm_text = nn.LayerNorm(text_dim)
        self.query = nn.Linear(image_dim, hidden_dim, bias=False)
        self.key = nn.Linear(text_dim, hidden_dim, bias=False)
        self.value = nn.Linear(text_dim, hidden_dim, bias=False)
        self.proj = nn.Linear(hidden_dim, image_dim)

    def split_heads(self, t):
        b, n, d = t.shape
        return t.reshape(b, n, self.heads, d // self.heads).transpose(1, 2)

    def forward(self, image, text, text_mask=None):
        """image: (B, N, image_dim), text: (B, L, text_dim), text_mask: (B, L) True = token."""
        context = self.norm_text(text)
        q = self.split_heads(self.query(self.norm_image(image)))
        k = self.split_heads(self.key(context))
        v = self.split_heads(self.key(context))

        mask = None
        if text_mask is not None:
            mask = text_mask.bool()[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = y.transpose(1, 2).flatten(2)
        return image + self.proj(y)
