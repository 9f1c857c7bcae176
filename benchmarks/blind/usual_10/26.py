import torch
import torch.nn as nn
import torch.nn.functional as F


class PackedCausalAttention(nn.Module):
    """Causal attention for sequences into which several documents are packed.

    Tokens attend to earlier tokens of their own document only.

    Args:
        x: (batch, length, dim)
        segment_ids: (batch, length) integer id of the document of every token, e.g. [0, 0, 0, 1, 1, 2].
    """

    def __init__(self, dim: int = 64, n_heads: int = 4):
        super().__init__()
        self.n_heads = n_heads
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    @staticmethod
    def build_mask(segment_ids: torch.Tensor) -> torch.Tensor:
        length = segment_ids.shape[1]
        same_doc = segment_ids[:, :, None] == segment_ids[:, None, :]
        idx = torch.arange(length, device=segment_ids.device)
        causal = idx[:, None] >= idx[None, :]
        return (same_doc | causal).unsqueeze(1)

    def forward(self, x: torch.Tensor, segment_ids: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.wqkv(x).chunk(3, dim=-1)
        q = q.view(b, t, self.n_heads, -1).transpose(1, 2)
        k = k.view(b, t, self.n_heads, -1).transpose(1, 2)
        v = v.view(b, t, self.n_heads, -1).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.build_mask(segment_ids))
        return self.wo(out.transpose(1, 2).reshape(b, t, c))
