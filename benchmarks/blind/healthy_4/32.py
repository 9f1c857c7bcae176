"""Functional multi-head attention for meta-learning: all weights come in through a dictionary."""
from typing import Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def layer_norm(x: Tensor, params: Dict[str, Tensor], name: str) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], params[f"{name}_weight"], params[f"{name}_bias"])


def linear(x: Tensor, params: Dict[str, Tensor], name: str) -> Tensor:
    return F.linear(x, params[f"{name}_weight"], params[f"{name}_bias"])


def attention(
    x: Tensor,
    params: Dict[str, Tensor],
    num_heads: int,
    keep: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    training: bool = True,
) -> Tensor:
    """Self-attention; ``keep`` (batch, length) is True for keys that may be attended to."""
    batch, length, dim = x.shape
    qkv = linear(x, params, "qkv").reshape(batch, length, 3, num_heads, dim // num_heads)
    q, k, v = qkv.unbind(dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (dim // num_heads) ** -0.5
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, None, :], torch.finfo(scores.dtype).min)
    weights = F.dropout(scores.softmax(dim=-1), p=dropout_p, training=training)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(batch, length, dim)
    return linear(out, params, "out")


def block(
    x: Tensor,
    params: Dict[str, Tensor],
    num_heads: int,
    keep: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    training: bool = True,
) -> Tensor:
    x = x + attention(layer_norm(x, params, "norm1"), params, num_heads, keep, dropout_p, training)
    hidden = F.gelu(linear(layer_norm(x, params, "norm2"), params, "fc1"))
    return x + linear(hidden, params, "fc2")


class MetaBlock(nn.Module):
    """Pre-norm transformer block whose weights can be overridden per call.

    ``forward(x)`` uses the module's own parameters; ``forward(x, fast_weights=...)`` uses the given
    ones in place of those of the same name (e.g. after an inner MAML step).
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, mlp_ratio: int = 4, attn_dropout: float = 0.0):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.attn_dropout = attn_dropout
        self.params = nn.ParameterDict()
        for name, fan_in, fan_out in (
            ("qkv", dim, 3 * dim),
            ("out", dim, dim),
            ("fc1", dim, mlp_ratio * dim),
            ("fc2", mlp_ratio * dim, dim),
        ):
            weight = nn.Parameter(torch.empty(fan_out, fan_in))
            nn.init.xavier_uniform_(weight)
            self.params[f"{name}_weight"] = weight
            self.params[f"{name}_bias"] = nn.Parameter(torch.zeros(fan_out))
        for name in ("norm1", "norm2"):
            self.params[f"{name}_weight"] = nn.Parameter(torch.ones(dim))
            self.params[f"{name}_bias"] = nn.Parameter(torch.zeros(dim))

    def forward(
        self, x: Tensor, keep: Optional[Tensor] = None, fast_weights: Optional[Dict[str, Tensor]] = None
    ) -> Tensor:
        params = dict(self.params.items())
        if fast_weights is not None:
            unknown = fast_weights.keys() - params.keys()
            if unknown:
                raise KeyError(f"unknown weights: {sorted(unknown)}")
            params.update(fast_weights)
        return block(x, params, self.num_heads, keep, self.attn_dropout, self.training)
