import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoupledCrossAttention(nn.Module):
    """Text cross-attention of the U-Net with an image-prompt adapter.

    The last ``num_image_tokens`` rows of ``context`` are image tokens. They have their own
    key and value projections and their own softmax; the result is added to that of the
    text with weight ``image_scale``. The queries are shared.

    x:         [B, C, H, W]
    context:   [B, T + num_image_tokens, context_dim]
    text_mask: [B, T] bool, True for the tokens to use
    """

    def __init__(self, channels=64, context_dim=96, num_heads=4, num_image_tokens=4, image_scale=1.0, groups=8):
        super().__init__()
        self.num_heads = num_heads
        self.num_image_tokens = num_image_tokens
        self.image_scale = image_scale
        self.norm = nn.GroupNorm(groups, channels)
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(context_dim, channels, bias=False)
        self.to_v = nn.Linear(context_dim, channels, bias=False)
        self.to_k_ip = nn.Linear(context_dim, channels, bias=False)
        self.to_v_ip = nn.Linear(context_dim, channels, bias=False)
        self.to_out = nn.Linear(channels, channels)

    def _split(self, t):
        return t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, x, context, text_mask=None):
        b, c, h, w = x.shape
        end = context.size(1) - self.num_image_tokens
        text, image = context[:, :end], context[:, end:]

        q = self._split(self.to_q(self.norm(x).flatten(2).transpose(1, 2)))
        mask = None if text_mask is None else text_mask[:, None, None, :]
        out = F.scaled_dot_product_attention(
            q, self._split(self.to_k(text)), self._split(self.to_v(text)), attn_mask=mask
        )
        if self.image_scale != 0.0:
            out = out + self.image_scale * F.scaled_dot_product_attention(
                q, self._split(self.to_k_ip(image)), self._split(self.to_v_ip(image))
            )

        out = self.to_out(out.transpose(1, 2).flatten(2))
        return x + out.transpose(1, 2).reshape(b, c, h, w)
