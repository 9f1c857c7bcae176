import torch
import torch.nn as nn
import torch.nn.functional as F


def segment_ids_from_cu_seqlens(cu_seqlens, total):
    """[0, 3, 7, 9] -> one document index per packed token."""
    positions = torch.arange(total, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.searchsorted(cu_seqlens[1:].contiguous(), positions)


class PackedCausalAttention(nn.Module):
    """Causal attention over documents that are packed one after another without padding.

    Args:
        x: (total_tokens, dim)
        cu_seqlens: (num_docs + 1,) cumulative document lengths, starting with 0 and ending
            with total_tokens. Tokens only see earlier tokens of their own document.
    """

    def __init__(self, dim=64, num_heads=4, qk_norm=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x, cu_seqlens):
        total, dim = x.shape
        q, k, v = self.qkv(x).view(total, 3, self.num_heads, self.head_dim).unbind(1)
        q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))

        seg = segment_ids_from_cu_seqlens(cu_seqlens, total)
        same_doc = seg[:, None] == seg[None, :]
        causal = torch.ones(total, total, dtype=torch.bool, device=x.device).tril()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=same_doc & causal)
        out = out.squeeze(0).transpose(0, 1).reshape(total, dim)
        return self.proj(out)
