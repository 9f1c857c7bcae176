import torch
import torch.nn as nn


class InspectableAttention(nn.Module):
    """Self-attention that can return its weights for plotting.

    forward(x, key_padding_mask, need_weights, average_attn_weights)
        key_padding_mask: (N, L) bool, True at padding
        returns (out, weights); weights are (N, L, L) averaged over the heads, (N, H, L, L) with
        average_attn_weights=False, or None with need_weights=False.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, key_padding_mask=None, need_weights=True, average_attn_weights=True):
        N, L, E = x.shape
        q = self.q_proj(x).view(N, L, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(N, L, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(N, L, self.num_heads, self.head_dim).transpose(1, 2)
        q = q / self.head_dim**0.5

        # one big batch, (N * H, L, d)
        q, k, v = (t.reshape(N * self.num_heads, L, self.head_dim) for t in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            pad = key_padding_mask[:, None, None, :].expand(-1, self.num_heads, L, -1)
            scores = scores.masked_fill(pad.reshape(N * self.num_heads, L, L), float("-inf"))
        weights = scores.softmax(dim=-1)
        out = torch.bmm(self.dropout(weights), v)
        out = out.view(N, self.num_heads, L, self.head_dim).transpose(1, 2).reshape(N, L, E)
        out = self.out_proj(out)
        if not need_weights:
            return out, None
        if average_attn_weights:
            return out, weights.view(self.num_heads, N, L, L).mean(dim=0)
        return out, weights.view(N, self.num_heads, L, L)
