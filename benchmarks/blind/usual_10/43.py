import torch
import torch.nn as nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    """Mistral style local attention for an autoregressive decoder.

    Every token sees itself and the ``window - 1`` tokens before it.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def window_mask(self, length: int, device: torch.device) -> torch.Tensor:
        pos = torch.arange(length, device=device)
        offset = pos.unsqueeze(1) - pos.unsqueeze(0)  # query position minus key position
        return offset < self.window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        shape = (B, T, self.num_heads, C // self.num_heads)
        q = self.q_proj(x).view(shape).transpose(1, 2)
        k = self.k_proj(x).view(shape).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.window_mask(T, x.device))
        return self.o_proj(y.transpose(1, 2).reshape(B, T, C))
