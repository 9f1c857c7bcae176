from typing import Optional

import torch
import torch.nn as nn


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, pos_seq):
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention with segment recurrence (Dai et al., 2019).

    Args:
        w: (batch, qlen, d_model) the current segment
        mems: (batch, mlen, d_model) hidden states of earlier segments, optional
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0):
        super().__init__()
        self.n_head, self.d_head = n_head, d_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.pos_emb = PositionalEmbedding(d_model)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = d_head ** -0.5

    def _rel_shift(self, x):
        b, h, q, k = x.shape
        x = torch.cat([x.new_zeros(b, h, q, 1), x], dim=-1)
        x = x.view(b, h, k + 1, q)[:, :, 1:]
        return x.reshape(b, h, q, k)

    def forward(self, w: torch.Tensor, mems: Optional[torch.Tensor] = None) -> torch.Tensor:
        bsz, qlen, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        klen = cat.size(1)
        mlen = klen - qlen

        q, k, v = self.qkv_net(cat).view(bsz, klen, 3, self.n_head, self.d_head).unbind(2)
        q = q[:, -qlen:]

        pos_seq = torch.arange(klen, device=w.device, dtype=w.dtype)
        r = self.r_net(self.pos_emb(pos_seq)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("bihd,bjhd->bhij", q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum("bihd,jhd->bhij", q + self.r_r_bias, r))
        score = (AC + BD) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        prob = score.masked_fill(mask, float("-inf")).softmax(dim=-1)
        vec = torch.einsum("bhij,bjhd->bihd", self.drop(prob), v)
        out = self.o_net(vec.reshape(bsz, qlen, -1))
        return self.layer_norm(w + self.drop(out))
