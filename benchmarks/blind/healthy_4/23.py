import math
from typing import Optional, Sequence

import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Linear):
    """A frozen linear layer plus a low-rank update ``(alpha / r) * B @ A``.

    ``B`` starts at zero, so a fresh layer computes what the frozen one does.
    """

    def __init__(self, in_features, out_features, r=8, lora_alpha=16, lora_dropout=0.0, bias=True):
        super().__init__(in_features, out_features, bias=bias)
        self.r = r
        self.scaling = lora_alpha / r
        self.lora_dropout = nn.Dropout(lora_dropout)
        self.lora_A = nn.Parameter(torch.empty(r, in_features))
        self.lora_B = nn.Parameter(torch.zeros(out_features, r))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.weight.requires_grad_(False)
        if self.bias is not None:
            self.bias.requires_grad_(False)

    def forward(self, x):
        out = F.linear(x, self.weight, self.bias)
        return out + F.linear(F.linear(self.lora_dropout(x), self.lora_A), self.lora_B) * self.scaling


class LoRASelfAttention(nn.Module):
    """Multi-head self-attention with LoRA on the projections named in ``target_modules``.

    All other projections are frozen.

    key_padding_mask: (batch, seq) bool, True for padding (the nn.MultiheadAttention convention).
    Each sequence has at least one token that is not padding.
    """

    def __init__(
        self,
        embed_dim: int = 256,
        num_heads: int = 8,
        r: int = 8,
        lora_alpha: int = 16,
        lora_dropout: float = 0.05,
        attn_dropout: float = 0.0,
        target_modules: Sequence[str] = ("q_proj", "v_proj"),
    ):
        super().__init__()
        assert embed_dim % num_heads == 0
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        unknown = set(target_modules) - set(names)
        if unknown:
            raise ValueError(f"unknown target modules: {sorted(unknown)}")
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.attn_dropout = attn_dropout
        for name in names:
            if name in target_modules:
                layer = LoRALinear(embed_dim, embed_dim, r, lora_alpha, lora_dropout)
            else:
                layer = nn.Linear(embed_dim, embed_dim)
                layer.requires_grad_(False)
            self.add_module(name, layer)

    def forward(self, x: torch.Tensor, key_padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        bsz, seq, dim = x.shape
        shape = (bsz, seq, self.num_heads, self.head_dim)
        q = self.q_proj(x).view(shape).transpose(1, 2)
        k = self.k_proj(x).view(shape).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)

        attn_mask = None
        if key_padding_mask is not None:
            # SDPA's boolean mask is the other way round: True takes part
            attn_mask = key_padding_mask.logical_not()[:, None, None, :]
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=self.attn_dropout if self.training else 0.0
        )
        return self.out_proj(out.transpose(1, 2).reshape(bsz, seq, dim))
