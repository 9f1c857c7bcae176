import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Linear):
    """Linear layer with a low-rank update. In eval mode the update is merged into the weight."""

    def __init__(self, in_features, out_features, r=4, lora_alpha=8, lora_dropout=0.0, bias=True):
        super().__init__(in_features, out_features, bias=bias)
        self.r = r
        self.scaling = lora_alpha / r
        self.lora_A = nn.Parameter(torch.empty(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.lora_dropout = nn.Dropout(lora_dropout)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.weight.requires_grad = False
        self.merged = False

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
            out = out + (self.lora_dropout(x) @ self.lora_A.t() @ self.lora_B.t()) * self.scaling
        return out


class LoRASelfAttention(nn.Module):
    """Frozen self-attention with trainable LoRA adapters on the query and value projections."""

    def __init__(self, embed_dim=64, num_heads=4, r=4, lora_alpha=8, lora_dropout=0.05, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = dropout
        self.q_proj = LoRALinear(embed_dim, embed_dim, r, lora_alpha, lora_dropout)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = LoRALinear(embed_dim, embed_dim, r, lora_alpha, lora_dropout)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        for name, p in self.named_parameters():
            p.requires_grad = "lora_" in name

    def forward(self, x, attention_mask=None):
        """attention_mask: (batch, seq), nonzero for tokens to attend to."""
        B, T, C = x.shape
        shape = (B, T, self.num_heads, self.head_dim)
        q = self.q_proj(x).view(shape).transpose(1, 2)
        k = self.k_proj(x).view(shape).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        if attention_mask is not None:
            attention_mask = attention_mask[:, None, None, :].bool()
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attention_mask, dropout_p=self.dropout if self.training else 0.0)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))
