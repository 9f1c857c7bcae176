import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Linear):
    """Linear layer with a low-rank update that is folded into the weight for inference."""

    def __init__(self, in_features, out_features, r=4, alpha=8, dropout=0.0, **kwargs):
        super().__init__(in_features, out_features, **kwargs)
        self.lora_A = nn.Parameter(torch.empty(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.scaling = alpha / r
        self.lora_dropout = nn.Dropout(dropout)
        self.merged = False
        self.weight.requires_grad = False
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def delta(self):
        return (self.lora_B @ self.lora_A) * self.scaling

    def train(self, mode: bool = True):
        super().train(mode)
        if mode:
            if self.merged:
                self.weight.data -= self.delta().data
                self.merged = False
        else:
            self.weight.data += self.delta().data
            self.merged = True
        return self

    def forward(self, x):
        out = F.linear(x, self.weight, self.bias)
        if not self.merged:
            out = out + self.lora_dropout(x) @ self.lora_A.t() @ self.lora_B.t() * self.scaling
        return out


class LoRASelfAttention(nn.Module):
    """Self-attention with adapters on the query and value projections."""

    def __init__(self, dim: int = 64, num_heads: int = 4, r: int = 4, alpha: int = 8, lora_dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.query = LoRALinear(dim, dim, r=r, alpha=alpha, dropout=lora_dropout)
        self.key = nn.Linear(dim, dim)
        self.value = LoRALinear(dim, dim, r=r, alpha=alpha, dropout=lora_dropout)
        self.dense = nn.Linear(dim, dim)
        for frozen in (self.key, self.dense):
            frozen.requires_grad_(False)

    def forward(self, x, attention_mask=None):
        """attention_mask: [B, T], 1 for tokens and 0 for padding."""
        B, T, D = x.shape
        q, k, v = (
            proj(x).view(B, T, self.num_heads, -1).transpose(1, 2)
            for proj in (self.query, self.key, self.value)
        )
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.dense(out.transpose(1, 2).reshape(B, T, D))
