from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, pos_seq):
        sinusoid_inp = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=-1)


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL layer attention, time first.

    w:    (qlen, bsz, d_model)
    mems: (mlen, bsz, d_model), hidden states of the previous segments; no gradient flows into them.

    Returns ``(output, new_mems)``, ``new_mems`` being the last ``mem_len`` inputs of this layer.
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0, dropatt=0.0, mem_len=16, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_head = d_head
        self.mem_len = mem_len
        self.pre_lnorm = pre_lnorm
        self.pos_emb = PositionalEmbedding(d_model)
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)

    @staticmethod
    def _rel_shift(x):
        """(qlen, klen, bsz, n_head); column c holds distance klen - 1 - c before and i + mlen - j after."""
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w: torch.Tensor, mems: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        qlen, bsz = w.size(0), w.size(1)
        cat = w if mems is None else torch.cat([mems.detach(), w], dim=0)
        klen = cat.size(0)
        mlen = klen - qlen

        w_heads = self.qkv_net(self.layer_norm(cat) if self.pre_lnorm else cat)
        w_head_q, w_head_k, w_head_v = w_heads.chunk(3, dim=-1)
        w_head_q = w_head_q[-qlen:].reshape(qlen, bsz, self.n_head, self.d_head)
        w_head_k = w_head_k.reshape(klen, bsz, self.n_head, self.d_head)
        w_head_v = w_head_v.reshape(klen, bsz, self.n_head, self.d_head)

        pos_seq = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        r = self.drop(self.pos_emb(pos_seq))
        r_head_k = self.r_net(r).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", w_head_q + self.r_w_bias, w_head_k)
        BD = self._rel_shift(torch.einsum("ibnd,jnd->ijbn", w_head_q + self.r_r_bias, r_head_k).contiguous())
        attn_score = (AC + BD) * self.scale

        # what rel_shift leaves above the diagonal is meaningless, and exactly that part is masked
        dec_attn_mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        attn_score = attn_score.float().masked_fill(dec_attn_mask[:, :, None, None], float("-inf"))

        # [qlen x klen x bsz x n_head], keys are axis 1
        attn_prob = self.dropatt(F.softmax(attn_score, dim=1).type_as(w))
        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_head_v)
        attn_out = self.drop(self.o_net(attn_vec.reshape(qlen, bsz, self.n_head * self.d_head)))

        output = w + attn_out if self.pre_lnorm else self.layer_norm(w + attn_out)
        with torch.no_grad():
            new_mems = cat[max(0, klen - self.mem_len):].detach()
        return output, new_mems
