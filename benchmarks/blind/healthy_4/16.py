from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


def build_2d_freqs(head_dim: int, height: int, width: int, base: float = 100.0) -> torch.Tensor:
    """Complex rotations (height * width, head_dim // 2), row-major: first half from y, second half from x."""
    assert head_dim % 4 == 0, "2-D rotary needs a head dim divisible by 4"
    freqs = 1.0 / (base ** (torch.arange(0, head_dim, 4).float() / head_dim))
    y, x = torch.meshgrid(torch.arange(height).float(), torch.arange(width).float(), indexing="ij")
    angles_y = torch.outer(y.flatten(), freqs)
    angles_x = torch.outer(x.flatten(), freqs)
    angles = torch.cat([angles_y, angles_x], dim=-1)
    return torch.polar(torch.ones_like(angles), angles)


def apply_rotary(x: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs).flatten(-2).type_as(x)


class RoPEAttention2D(nn.Module):
    """ViT attention with axial 2-D rotary embedding on patch tokens.

    The first ``num_prefix_tokens`` tokens (class token, registers) have no place in the grid
    and are left unrotated.
    """

    def __init__(
        self,
        dim: int = 384,
        num_heads: int = 6,
        grid_size: Tuple[int, int] = (14, 14),
        num_prefix_tokens: int = 1,
        rope_theta: float = 100.0,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.num_prefix_tokens = num_prefix_tokens
        self.grid_size = grid_size
        self.rope_theta = rope_theta
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        freqs = build_2d_freqs(dim // num_heads, *grid_size, base=rope_theta)
        # kept as a real tensor: .half() would otherwise drop the imaginary part
        self.register_buffer("freqs", torch.view_as_real(freqs), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, N, C = x.shape
        P = self.num_prefix_tokens
        assert N - P == self.grid_size[0] * self.grid_size[1], "token count does not match the grid"
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)

        freqs = torch.view_as_complex(self.freqs.float())
        q = torch.cat([q[:, :, :P], apply_rotary(q[:, :, P:], freqs)], dim=2)
        k = torch.cat([k[:, :, :P], apply_rotary(k[:, :, P:], freqs)], dim=2)

        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop if self.training else 0.0)
        x = x.transpose(1, 2).reshape(B, N, C)
        return self.proj_drop(self.proj(x))
