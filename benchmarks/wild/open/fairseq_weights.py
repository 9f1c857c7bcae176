"""need_head_weights is ignored on one path: averaged weights come back where weights per head were asked for.

facebookresearch/fairseq #3365 (2021)
https://github.com/facebookresearch/fairseq/issues/3365
"""
import torch
import torch.nn as nn


def _build(rev):
    class MultiheadAttention(nn.Module):
        """Input shape: Time x Batch x Channel.

        key_padding_mask (batch, src_len) bool, True for padding. need_weights: also return the attention weights,
        averaged over heads, (batch, tgt_len, src_len). need_head_weights: return the weights of each head,
        (heads, batch, tgt_len, src_len); implies need_weights. incremental_state: dictionary for decoding.
        """

        def __init__(self, embed_dim, num_heads, dropout=0.0):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
            self.scaling = self.head_dim ** -0.5
            self.q_proj = nn.Linear(embed_dim, embed_dim)
            self.k_proj = nn.Linear(embed_dim, embed_dim)
            self.v_proj = nn.Linear(embed_dim, embed_dim)
            self.out_proj = nn.Linear(embed_dim, embed_dim)

        def forward(self, query, key, value, key_padding_mask=None, incremental_state=None, need_weights=True,
                    need_head_weights=False):
            tgt_len, bsz, embed_dim = query.size()
            q = self.q_proj(query) * self.scaling
            q, k, v = (t.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)
                       for t in (q, self.k_proj(key), self.v_proj(value)))
            attn_weights = torch.bmm(q, k.transpose(1, 2))
            if key_padding_mask is not None:
                attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, -1).masked_fill(
                    key_padding_mask[:, None, None, :], float("-inf")).view(bsz * self.num_heads, tgt_len, -1)
            attn_weights = attn_weights.softmax(dim=-1)
            attn = torch.bmm(attn_weights, v).transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
            attn = self.out_proj(attn)
            if not (need_weights or need_head_weights):
                return attn, None
            weights = attn_weights.view(bsz, self.num_heads, tgt_len, -1).transpose(1, 0)
            if incremental_state is None and rev == 1:
                return attn, weights.mean(dim=0)
            if not need_head_weights:
                weights = weights.mean(dim=0)
            return attn, weights

    torch.manual_seed(0)
    return MultiheadAttention(32, 4)


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    x = torch.randn(7, 2, 32)
    return (x, x, x), {"need_head_weights": True}
