from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention: content and position terms with a segment memory.

    Sequence first: ``w`` is (qlen, bsz, d_model), ``mems`` is (mlen, bsz, d_model).
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0, dropatt=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head, self.d_model, self.d_head = n_head, d_model, d_head
        self.pre_lnorm = pre_lnorm
        self.scale = 1 / (d_head ** 0.5)

        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)

        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def positional_embedding(self, klen, dtype):
        pos_seq = torch.arange(0, klen, device=self.inv_freq.device, dtype=torch.float32)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1).to(dtype)

    @staticmethod
    def _rel_shift(x):
        # x: (qlen, klen, bsz, n_head)
        zero_pad = x.new_zeros(x.size(0), 1, *x.shape[2:])
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.reshape(x.size(1) + 1, x.size(0), *x.shape[2:])
        return x_padded[1:].reshape(x.shape)

    def forward(self, w: torch.Tensor, mems: Optional[torch.Tensor] = None) -> torch.Tensor:
        qlen, bsz = w.size(0), w.size(1)
        mlen = 0 if mems is None else mems.size(0)
        klen = mlen + qlen

        cat = w if mems is None else torch.cat([mems.detach(), w], dim=0)
        heads = self.qkv_net(self.layer_norm(cat) if self.pre_lnorm else cat)
        q, k, v = heads.chunk(3, dim=-1)
        q = q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        k = k.view(klen, bsz, self.n_head, self.d_head)
        v = v.view(klen, bsz, self.n_head, self.d_head)

        r = self.r_net(self.drop(self.positional_embedding(klen, w.dtype)))
        r = r.view(klen, self.n_head, self.d_head)

        AC = torch.einsum('ibnd,jbnd->ijbn', q + self.r_w_bias, k)
        BD = torch.einsum('ibnd,jnd->ijbn', q + self.r_r_bias, r)
        BD = self._rel_shift(BD)

        attn_score = (AC + BD) * self.scale
        dec_mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        attn_score = attn_score.masked_fill(dec_mask[:, :, None, None], float('-inf'))

        attn_prob = self.dropatt(F.softmax(attn_score, dim=1))
        attn_vec = torch.einsum('ijbn,jbnd->ibnd', attn_prob, v).reshape(qlen, bsz, -1)
        attn_out = self.drop(self.o_net(attn_vec))

        return w + attn_out if self.pre_lnorm else self.layer_norm(w + attn_out)
