from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPartialLearnableAttn(nn.Module):
    """Transformer-XL attention (batch first) with a segment memory.

    Post-norm by default, as in the paper. ``mems`` holds the hidden states before this layer of the previous
    segment; the new memory is returned detached.
    """

    def __init__(self, d_model=64, n_head=4, d_head=16, mem_len=16, dropout=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head, self.d_head, self.d_model, self.mem_len = n_head, d_head, d_model, mem_len
        self.q_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.scale = 1 / d_head ** 0.5
        self.pre_lnorm = pre_lnorm
        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _positions(self, klen):
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=self.inv_freq.device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        b, h, q, k = x.shape
        x = F.pad(x, (1, 0)).view(b, h, k + 1, q)
        return x[:, :, 1:].reshape(b, h, q, k)

    def forward(self, w: torch.Tensor, mems: Optional[torch.Tensor] = None) -> Tuple[torch.Tensor, torch.Tensor]:
        B, qlen, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        klen = cat.size(1)
        mlen = klen - qlen

        h = self.layer_norm(cat) if self.pre_lnorm else cat
        q = self.q_net(h[:, mlen:]).view(B, qlen, self.n_head, self.d_head)
        k, v = self.kv_net(h).view(B, klen, 2, self.n_head, self.d_head).unbind(2)
        r = self.r_net(self._positions(klen).to(w.dtype)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("bihd,bjhd->bhij", q + self.r_w_bias, k)
        BD = torch.einsum("bihd,jhd->bhij", q + self.r_r_bias, r)
        score = (AC + self._rel_shift(BD)) * self.scale

        hidden = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        prob = score.masked_fill(hidden, -float("inf")).softmax(dim=-1)
        vec = torch.einsum("bhij,bjhd->bihd", self.drop(prob), v).reshape(B, qlen, -1)
        out = w + self.drop(self.o_net(vec))
        if not self.pre_lnorm:
            out = self.layer_norm(out)
        return out, cat[:, -self.mem_len:].detach()
