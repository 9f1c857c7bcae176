import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    """y = W x + b + (alpha / r) * B A x. W and b are frozen, B starts at zero."""

    def __init__(self, base: nn.Linear, r: int = 4, alpha: int = 8, dropout: float = 0.0):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.scaling = alpha / r
        self.lora_A = nn.Parameter(torch.empty(r, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.lora_dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        update = F.linear(F.linear(self.lora_dropout(x), self.lora_A), self.lora_B)
        return self.base(x) + self.scaling * update


class LoRASelfAttention(nn.Module):
    """Bidirectional self attention with LoRA on the query and value projections (Hu et al., sec. 4.2)."""

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4, r: int = 4, lora_alpha: int = 8):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.query = LoRALinear(nn.Linear(hidden_size, hidden_size), r, lora_alpha)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = LoRALinear(nn.Linear(hidden_size, hidden_size), r, lora_alpha)
        self.dense = nn.Linear(hidden_size, hidden_size)
        for p in list(self.key.parameters()) + list(self.dense.parameters()):
            p.requires_grad_(False)

    def _heads(self, t):
        return t.view(t.size(0), t.size(1), self.num_attention_heads, -1).transpose(1, 2)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: [B, T], 1 for tokens and 0 for padding."""
        q = self._heads(self.query(hidden_states))
        k = self._heads(self.key(hidden_states))
        v = self._heads(self.value(hidden_states))
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.dense(out.transpose(1, 2).flatten(2))
