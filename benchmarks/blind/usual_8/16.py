import torch
import torch.nn.functional as F
from torch import nn


class PackedCausalAttention(nn.Module):
    """Causal self-attention on packed sequences.

    All the documents of a batch are concatenated along one axis. ``cu_seqlens`` holds the
    cumulative lengths, starting with 0: three documents of 4, 2 and 5 tokens give
    ``[0, 4, 6, 11]``. A token sees the earlier tokens of its own document and itself.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError("embed_dim must be a multiple of num_heads")
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=False)

    @staticmethod
    def document_ids(total: int, cu_seqlens: torch.Tensor) -> torch.Tensor:
        index = torch.arange(total, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
        return torch.bucketize(index, cu_seqlens[1:])

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """
        x: (total_tokens, embed_dim)
        cu_seqlens: (num_documents + 1,)
        """
        total, dim = x.shape
        q, k, v = (
            self.in_proj(x)
            .view(total, 3, self.num_heads, self.head_dim)
            .permute(1, 2, 0, 3)
            .unbind(0)
        )

        doc = self.document_ids(total, cu_seqlens)
        same_doc = doc[:, None] == doc[None, :]
        causal = torch.ones(total, total, dtype=torch.bool, device=x.device).tril()

        y = F.scaled_dot_product_attention(
            q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), attn_mask=same_doc & causal
        ).squeeze(0)
        return self.out_proj(y.transpose(0, 1).reshape(total, dim))
