import torch
import torch.nn as nn
from dataclasses import dataclass
from torch.nn import functional as F


@dataclass
class MupConfig:
    block_size: int = 256
    n_head: int = 4
    n_embd: int = 64
    dropout: float = 0.0
    bias: bool = False
    attn_mult: float = 1.0


class MupCausalSelfAttention(nn.Module):
    """
    Causal self-attention under the maximal update parametrization.

    muP asks for q.k / d instead of q.k / sqrt(d) (Yang et al., 2022, Table 8), so that the logits
    stay O(1) once q and k become correlated during training. `attn_mult` is the tunable
    multiplier that is transferred from the proxy model.
    """

    def __init__(self, config: MupConfig = MupConfig()):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout
        self.scale = config.attn_mult / (config.n_embd // config.n_head)
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.c_attn.weight, std=self.n_embd ** -0.5)
        with torch.no_grad():
            # zero-initialised query projection, App. D.2 of the paper
            self.c_attn.weight[: self.n_embd].zero_()
        nn.init.normal_(self.c_proj.weight, std=self.n_embd ** -0.5)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=None,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            scale=self.scale,
        )
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))
