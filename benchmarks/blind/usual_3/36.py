import torch
import torch.nn.functional as F
from torch import nn


class PackedSelfAttention(nn.Module):
    """Causal attention over a packed batch of documents.

    The documents are concatenated along the token axis without padding. ``cu_seqlens`` holds
    the cumulative lengths with a leading zero, e.g. [0, 5, 9, 16] for documents of 5, 4 and 7
    tokens. A token sees the earlier tokens of its own document and itself.
    """

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, qkv_bias: bool = True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.qkv = nn.Linear(hidden_size, hidden_size * 3, bias=qkv_bias)
        self.proj = nn.Linear(hidden_size, hidden_size)

    @staticmethod
    def build_mask(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
        positions = torch.arange(total, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        segment = torch.bucketize(positions, cu_seqlens[1:])
        same_document = segment[:, None] == segment[None, :]
        return same_document & (positions[:, None] >= positions[None, :])

    def forward(self, hidden_states: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """hidden_states: (total_tokens, hidden_size)"""
        total = hidden_states.shape[0]
        q, k, v = (
            self.qkv(hidden_states)
            .reshape(total, 3, self.num_heads, self.head_dim)
            .permute(1, 2, 0, 3)
            .unbind(0)
        )
        mask = self.build_mask(cu_seqlens, total)
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask[None, None])
        return self.proj(out[0].transpose(0, 1).reshape(total, -1))
