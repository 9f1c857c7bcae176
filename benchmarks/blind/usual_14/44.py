import torch
import torch.nn as nn


class SequenceFirstAttention(nn.Module):
    """fairseq-style attention.

    Input shape: Time x Batch x Channel.

    key_padding_mask: (batch, src_len), nonzero where keys are *excluded* (byte or bool).
    need_weights: also return the weights averaged over heads, (batch, tgt_len, src_len).
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.dropout = nn.Dropout(dropout)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)

    def _proj(self, x, i):
        w = self.in_proj_weight.narrow(0, i * self.embed_dim, self.embed_dim)
        b = self.in_proj_bias.narrow(0, i * self.embed_dim, self.embed_dim)
        return nn.functional.linear(x, w, b)

    def forward(self, query, key, value, key_padding_mask=None, need_weights=False):
        tgt_len, bsz, embed_dim = query.size()
        src_len = key.size(0)
        q = self._proj(query, 0) * self.scaling
        k = self._proj(key, 1)
        v = self._proj(value, 2)

        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)

        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights.masked_fill(key_padding_mask.bool()[:, None, None, :], float("-inf"))
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)
        attn_weights = attn_weights.softmax(dim=-1)
        attn = torch.bmm(self.dropout(attn_weights), v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        attn = self.out_proj(attn)

        if need_weights:
            return attn, attn_weights.view(bsz, self.num_heads, tgt_len, src_len).mean(dim=1)
        return attn, None
