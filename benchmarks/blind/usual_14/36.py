import torch
import torch.nn as nn
import torch.nn.functional as F


class PrefixLMAttention(nn.Module):
    """Attention for a prefix language model.

    The first `prefix_len` tokens (e.g. the image or the question) see each other in both directions and
    everything after is causal. prefix_len = 0 gives an ordinary causal model.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, max_len: int = 128, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer(
            "causal_mask", torch.ones(max_len, max_len, dtype=torch.bool).tril(), persistent=False
        )

    def get_mask(self, seq_len: int, prefix_len: int) -> torch.Tensor:
        mask = self.causal_mask[:seq_len, :seq_len]
        if prefix_len > 0:
            mask[:, :prefix_len] = True
        return mask

    def forward(self, x: torch.Tensor, prefix_len: int = 0) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=self.get_mask(T, prefix_len),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.proj(y.transpose(1, 2).reshape(B, T, C))
