import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedSelfAttention(nn.Module):
    """
    Causal self-attention over a packed batch.

    All sequences are concatenated without padding:
        x:          (total_tokens, dim)
        cu_seqlens: (num_seqs + 1,) cumulative lengths, e.g. [0, 3, 7] for sequences of 3 and 4 tokens

    A token attends to the earlier tokens of its own sequence and to itself. This is the reference
    path for devices without a varlen kernel.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, bias: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.wo = nn.Linear(dim, dim, bias=bias)

    @staticmethod
    def build_mask(cu_seqlens: torch.Tensor, total: int) -> torch.Tensor:
        index = torch.arange(total, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        segment = torch.bucketize(index, cu_seqlens[1:])
        same = segment[:, None] == segment[None, :]
        causal = index[:, None] >= index[None, :]
        return same & causal

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        total, dim = x.shape
        q, k, v = self.wqkv(x).view(total, 3, self.num_heads, self.head_dim).unbind(1)
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))  # 1, heads, total, head_dim
        mask = self.build_mask(cu_seqlens, total)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = out.squeeze(0).transpose(0, 1).reshape(total, dim)
        return self.wo(out)
