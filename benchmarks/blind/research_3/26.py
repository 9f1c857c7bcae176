import torch
import torch.nn as nn
import torch.nn.functional as F


class RegisterViTAttention(nn.Module):
    """Self attention over [cls | registers | patches].

    The register tokens live in this module's sequence only: they are put in front
    of the patches, take part in the attention and are removed from the result.
    """

    def __init__(self, dim=64, num_heads=4, num_registers=4, qkv_bias=True, attn_drop=0.1, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.num_registers = num_registers
        self.registers = nn.Parameter(torch.randn(1, num_registers, dim) * 0.02)
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(self.head_dim)
        self.k_norm = nn.LayerNorm(self.head_dim)
        self.attn_drop = attn_drop
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        R = self.num_registers
        x = torch.cat([x[:, :1], self.registers.expand(B, -1, -1), x[:, 1:]], dim=1)

        qkv = self.qkv(x).reshape(B, N + R, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)

        x = F.scaled_dot_product_attention(q, k, v, dropout_p=self.attn_drop)

        x = x.transpose(1, 2).reshape(B, N + R, C)
        x = self.proj_drop(self.proj(x))
        return torch.cat([x[:, :1], x[:, 1 + R:]], dim=1)
