from typing import Optional

import torch
from torch import nn


class Adapter(nn.Module):
    """Houlsby bottleneck adapter; close to the identity at initialisation."""

    def __init__(self, dim: int, bottleneck: int):
        super().__init__()
        self.down = nn.Linear(dim, bottleneck)
        self.act = nn.GELU()
        self.up = nn.Linear(bottleneck, dim)
        nn.init.normal_(self.up.weight, std=1e-3)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(self.act(self.down(x)))


class AdapterBertLayer(nn.Module):
    """Post-norm BERT encoder layer with one adapter after each sub-layer.

    Each adapter stands after the sub-layer's output projection and before the residual
    connection, as in Houlsby et al. (2019).

    Args:
        hidden_size: model width.
        num_attention_heads: number of heads.
        intermediate_size: width of the feed-forward layer.
        adapter_size: bottleneck width of the adapters.
        dropout: dropout on attention weights and sub-layer outputs.
        freeze_base: train the adapters and the layer norms only.

    forward's ``attention_mask`` is (batch, seq), 1 for real tokens and 0 for padding.
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_attention_heads: int = 4,
        intermediate_size: int = 1024,
        adapter_size: int = 32,
        dropout: float = 0.1,
        freeze_base: bool = False,
    ):
        super().__init__()
        assert hidden_size % num_attention_heads == 0
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.attention_output = nn.Linear(hidden_size, hidden_size)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        if freeze_base:
            for p in self.parameters():
                p.requires_grad_(False)

        self.attention_adapter = Adapter(hidden_size, adapter_size)
        self.output_adapter = Adapter(hidden_size, adapter_size)
        self.attention_norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.output_norm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.attn_dropout = nn.Dropout(dropout)
        self.hidden_dropout = nn.Dropout(dropout)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        return x.view(b, t, self.num_heads, self.head_dim).permute(0, 2, 1, 3)

    def self_attention(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor]) -> torch.Tensor:
        q, k, v = self._split(self.query(x)), self._split(self.key(x)), self._split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.head_dim**0.5
        if attention_mask is not None:
            extended = (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * torch.finfo(scores.dtype).min
            scores = scores + extended
        probs = self.attn_dropout(scores.softmax(dim=-1))
        return torch.matmul(probs, v).permute(0, 2, 1, 3).flatten(2)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        attn = self.hidden_dropout(self.attention_output(self.self_attention(hidden_states, attention_mask)))
        hidden_states = self.attention_norm(hidden_states + self.attention_adapter(attn))

        ff = self.output(nn.functional.gelu(self.intermediate(hidden_states)))
        ff = self.hidden_dropout(ff)
        return self.output_norm(hidden_states + self.output_adapter(ff))
