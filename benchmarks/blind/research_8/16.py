import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoupledCrossAttention(nn.Module):
    """Cross attention of the denoiser with an image-prompt adapter (IP-Adapter).

    The last ``num_image_tokens`` rows of ``context`` are image tokens. They get a softmax and key/value projections
    of their own; both results are added before the shared output projection. ``image_scale = 0`` turns the
    adapter off.

    hidden_states: [B, C, H, W] or [B, N, C]
    text_mask: [B, L_text], True for real tokens
    """

    def __init__(self, dim=64, context_dim=48, heads=4, num_image_tokens=4, image_scale=1.0):
        super().__init__()
        self.heads = heads
        self.num_image_tokens = num_image_tokens
        self.image_scale = image_scale
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(context_dim, dim, bias=False)
        self.to_v = nn.Linear(context_dim, dim, bias=False)
        self.to_k_ip = nn.Linear(context_dim, dim, bias=False)
        self.to_v_ip = nn.Linear(context_dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def _split(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, hidden_states, context, text_mask=None):
        spatial = hidden_states.dim() == 4
        if spatial:
            b, c, h, w = hidden_states.shape
            x = hidden_states.flatten(2).transpose(1, 2)
        else:
            x = hidden_states

        cut = context.size(1) - self.num_image_tokens
        text, image = context[:, :cut], context[:, cut:]
        q = self._split(self.to_q(x))

        mask = None if text_mask is None else text_mask[:, None, None, :].bool()
        y = F.scaled_dot_product_attention(q, self._split(self.to_k(text)), self._split(self.to_v(text)), attn_mask=mask)
        y_ip = F.scaled_dot_product_attention(q, self._split(self.to_k_ip(image)), self._split(self.to_v_ip(image)))

        y = y + self.image_scale * y_ip
        y = self.to_out(y.transpose(1, 2).flatten(2))
        if spatial:
            y = y.transpose(1, 2).reshape(b, c, h, w)
        return y + hidden_states
