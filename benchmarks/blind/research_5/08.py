import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Linear):
    """Linear layer with a low-rank update. The update is folded into the weight for inference."""

    def __init__(self, in_features, out_features, r=8, lora_alpha=16, lora_dropout=0.0, bias=True):
        super().__init__(in_features, out_features, bias=bias)
        self.r = r
        self.scaling = lora_alpha / r
        self.lora_A = nn.Parameter(torch.empty(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.lora_dropout = nn.Dropout(lora_dropout)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.weight.requires_grad = False

    def delta(self):
        return (self.lora_B @ self.lora_A) * self.scaling

    def train(self, mode: bool = True):
        super().train(mode)
        with torch.no_grad():
            if mode:
                self.weight.sub_(self.delta())
            else:
                self.weight.add_(self.delta())
        return self

    def forward(self, x):
        out = F.linear(x, self.weight, self.bias)
        if self.training:
            out = out + self.lora_dropout(x) @ self.lora_A.t() @ self.lora_B.t() * self.scaling
        return out


class LoRASelfAttention(nn.Module):
    """Self-attention whose query and value projections carry LoRA adapters.

    The key and output projections stay frozen.
    """

    def __init__(self, dim=64, num_heads=4, r=8, lora_alpha=16, lora_dropout=0.05):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.q_proj = LoRALinear(dim, dim, r, lora_alpha, lora_dropout)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = LoRALinear(dim, dim, r, lora_alpha, lora_dropout)
        self.o_proj = nn.Linear(dim, dim)
        for module in (self.k_proj, self.o_proj):
            module.requires_grad_(False)

    def _shape(self, x):
        b, t, _ = x.shape
        return x.view(b, t, self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x, attention_mask=None):
        """attention_mask: bool [B, T], True for tokens that take part."""
        q, k, v = self._shape(self.q_proj(x)), self._shape(self.k_proj(x)), self._shape(self.v_proj(x))
        mask = attention_mask[:, None, None, :] if attention_mask is not None else None
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))
