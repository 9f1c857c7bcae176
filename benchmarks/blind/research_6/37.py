import math
from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    """Frozen linear layer plus low-rank update ``(alpha / r) * B A x``.

    B starts at zero, the adapted layer therefore equals the base layer at first.
    """

    def __init__(self, in_features, out_features, r=4, alpha=8, dropout=0.0, bias=True):
        super().__init__()
        self.base = nn.Linear(in_features, out_features, bias=bias)
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.scaling = alpha / r
        self.lora_A = nn.Parameter(torch.empty(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        self.dropout = nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))

    def forward(self, x):
        update = F.linear(F.linear(self.dropout(x), self.lora_A), self.lora_B)
        return self.base(x) + update * self.scaling


class LoRASelfAttention(nn.Module):
    """BERT-like self attention; only q and v are adapted, everything else is frozen.

    attention_mask: additive float mask that broadcasts to [B, heads, T, T]: 0 keeps a key,
    a large negative number removes it.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, r: int = 4, alpha: int = 8, attn_dropout: float = 0.1):
        super().__init__()
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
        self.query = LoRALinear(dim, dim, r=r, alpha=alpha)
        self.key = nn.Linear(dim, dim).requires_grad_(False)
        self.value = LoRALinear(dim, dim, r=r, alpha=alpha)
        self.output = nn.Linear(dim, dim).requires_grad_(False)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        B, T, C = hidden_states.shape

        def heads(t):
            return t.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)

        context = F.scaled_dot_product_attention(
            heads(self.query(hidden_states)),
            heads(self.key(hidden_states)),
            heads(self.value(hidden_states)),
            attn_mask=attention_mask,
            dropout_p=self.attn_dropout if self.training else 0.0,
        )
        return self.output(context.transpose(1, 2).reshape(B, T, C))
