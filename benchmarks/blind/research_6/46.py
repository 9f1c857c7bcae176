import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoupledCrossAttention(nn.Module):
    """U-Net cross attention with an image prompt adapter.

    ``context`` [B, L + num_image_tokens, context_dim]: the text embeddings, followed by
    the image tokens at the end. Text and image have their own keys/values and their own
    softmax; the image result is added with weight ``ip_scale``. One shared query and one
    shared output projection serve both.
    """

    def __init__(self, channels=64, context_dim=48, num_heads=4, num_image_tokens=4, ip_scale=1.0, groups=8):
        super().__init__()
        self.heads = num_heads
        self.num_image_tokens = num_image_tokens
        self.ip_scale = ip_scale
        self.norm = nn.GroupNorm(groups, channels, eps=1e-6)
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k = nn.Linear(context_dim, channels, bias=False)
        self.to_v = nn.Linear(context_dim, channels, bias=False)
        self.to_k_ip = nn.Linear(context_dim, channels, bias=False)
        self.to_v_ip = nn.Linear(context_dim, channels, bias=False)
        self.to_out = nn.Linear(channels, channels)
        # the adapter starts as a copy of the text branch
        self.to_k_ip.load_state_dict(self.to_k.state_dict())
        self.to_v_ip.load_state_dict(self.to_v.state_dict())

    def _split(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x, context):
        b, c, h, w = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2)
        end = context.size(1) - self.num_image_tokens
        text, image = context[:, :end], context[:, end:]

        q = self._split(self.to_q(tokens))
        out = F.scaled_dot_product_attention(q, self._split(self.to_k(text)), self._split(self.to_v(text)))
        ip = F.scaled_dot_product_attention(q, self._split(self.to_k_ip(image)), self._split(self.to_v_ip(image)))
        out = out + self.ip_scale * ip

        out = self.to_out(out.transpose(1, 2).flatten(2))
        return x + out.transpose(1, 2).reshape(b, c, h, w)
