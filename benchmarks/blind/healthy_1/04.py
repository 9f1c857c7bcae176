from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class IncrementalMultiheadAttention(nn.Module):
    """Multi-headed attention, time-first.

    Input shape: Time x Batch x Channel

    ``key_padding_mask`` is ``(batch, src_len)`` where padding elements are True.
    ``attn_mask`` is ``(tgt_len, src_len)`` and added to the scores (``-inf`` blocks).
    ``incremental_state`` is a plain dict owned by the caller; during generation the module keeps
    its projected keys and values there. With ``static_kv`` (encoder-decoder attention) the
    projections of the first step are reused as they are.
    """

    def __init__(
        self,
        embed_dim=128,
        num_heads=4,
        kdim=None,
        vdim=None,
        dropout=0.0,
        bias=True,
        add_zero_attn=True,
        encoder_decoder_attention=False,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim, "embed_dim must be divisible by num_heads"
        self.scaling = self.head_dim**-0.5
        self.dropout = dropout
        self.add_zero_attn = add_zero_attn
        self.encoder_decoder_attention = encoder_decoder_attention
        self.k_proj = nn.Linear(kdim or embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(vdim or embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.reset_parameters()

    def reset_parameters(self):
        for proj in (self.q_proj, self.k_proj, self.v_proj):
            nn.init.xavier_uniform_(proj.weight, gain=2**-0.5)
        nn.init.xavier_uniform_(self.out_proj.weight)
        if self.out_proj.bias is not None:
            nn.init.constant_(self.out_proj.bias, 0.0)

    def _shape(self, x: Tensor, bsz: int) -> Tensor:
        return x.contiguous().view(-1, bsz * self.num_heads, self.head_dim).transpose(0, 1)

    def forward(
        self,
        query: Tensor,
        key: Optional[Tensor] = None,
        value: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        incremental_state: Optional[Dict[int, Dict[str, Optional[Tensor]]]] = None,
        static_kv: bool = False,
        need_weights: bool = False,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        tgt_len, bsz, embed_dim = query.size()
        if key is None:
            key = query
        if value is None:
            value = key

        saved = incremental_state.get(id(self)) if incremental_state is not None else None
        q = self._shape(self.q_proj(query) * self.scaling, bsz)

        if saved is not None and static_kv:
            assert self.encoder_decoder_attention
            k, v = saved["prev_key"], saved["prev_value"]
            key_padding_mask = saved["prev_key_padding_mask"]
        else:
            k = self._shape(self.k_proj(key), bsz)
            v = self._shape(self.v_proj(value), bsz)
            if saved is not None:
                prev_mask = saved["prev_key_padding_mask"]
                if prev_mask is not None or key_padding_mask is not None:
                    if prev_mask is None:
                        prev_mask = torch.zeros(bsz, saved["prev_key"].size(1), dtype=torch.bool, device=q.device)
                    if key_padding_mask is None:
                        key_padding_mask = torch.zeros(bsz, k.size(1), dtype=torch.bool, device=q.device)
                    key_padding_mask = torch.cat([prev_mask, key_padding_mask.bool()], dim=1)
                k = torch.cat([saved["prev_key"], k], dim=1)
                v = torch.cat([saved["prev_value"], v], dim=1)
        if incremental_state is not None:
            incremental_state[id(self)] = {
                "prev_key": k,
                "prev_value": v,
                "prev_key_padding_mask": key_padding_mask,
            }

        if self.add_zero_attn:
            # appended after saving, hence exactly one zero slot however long the cache is
            k = torch.cat([k, k.new_zeros(k.size(0), 1, self.head_dim)], dim=1)
            v = torch.cat([v, v.new_zeros(v.size(0), 1, self.head_dim)], dim=1)
            if attn_mask is not None:
                attn_mask = F.pad(attn_mask, (0, 1), value=0.0)
            if key_padding_mask is not None:
                key_padding_mask = F.pad(key_padding_mask.bool(), (0, 1), value=False)

        src_len = k.size(1)
        attn_weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            attn_weights = attn_weights + attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            attn_weights = attn_weights.view(bsz, self.num_heads, tgt_len, src_len)
            attn_weights = attn_weights.masked_fill(
                key_padding_mask.bool().unsqueeze(1).unsqueeze(2), float("-inf")
            )
            attn_weights = attn_weights.view(bsz * self.num_heads, tgt_len, src_len)

        attn_float = F.softmax(attn_weights, dim=-1, dtype=torch.float32)
        attn_probs = F.dropout(attn_float.type_as(v), p=self.dropout, training=self.training)
        attn = torch.bmm(attn_probs, v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        attn = self.out_proj(attn)

        weights = None
        if need_weights:
            weights = attn_float.view(bsz, self.num_heads, tgt_len, src_len).mean(dim=1)
        return attn, weights
