from typing import Optional

import torch
import torch.nn as nn


class RelPartialLearnableAttn(nn.Module):
    """Relative multi-head attention of Transformer-XL; tensors are (length, batch, d_model).

    ``mems`` holds the hidden states of the previous segment, without gradient. Scores are
    (q + u) k_j + (q + v) r_{i-j}, with r from the sinusoidal encoding of the distance i - j.
    """

    def __init__(self, d_model=64, n_head=4, d_head=16, dropout=0.0):
        super().__init__()
        self.n_head, self.d_head = n_head, d_head
        self.scale = d_head**-0.5
        self.q_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        nn.init.normal_(self.r_w_bias, std=0.02)
        nn.init.normal_(self.r_r_bias, std=0.02)
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model)))

    def pos_emb(self, pos_seq):
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        zero_pad = x.new_zeros((x.size(0), 1) + x.size()[2:])
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view((x.size(1) + 1, x.size(0)) + x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w: torch.Tensor, mems: Optional[torch.Tensor] = None) -> torch.Tensor:
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems.detach(), w], dim=0)
        klen = cat.size(0)
        pos_seq = torch.arange(0, klen, 1.0, device=w.device, dtype=w.dtype)
        r = self.pos_emb(pos_seq)

        q = self.q_net(w).view(qlen, bsz, self.n_head, self.d_head)
        k, v = self.kv_net(cat).view(klen, bsz, 2, self.n_head, self.d_head).unbind(2)
        r_k = self.r_net(r).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        BD = torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, r_k)
        score = (AC + self._rel_shift(BD)) * self.scale

        future = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        score = score.masked_fill(future[:, :, None, None], -1e30)
        prob = self.drop(score.softmax(dim=1))
        vec = torch.einsum("ijbn,jbnd->ibnd", prob, v).reshape(qlen, bsz, -1)
        return self.layer_norm(w + self.drop(self.o_net(vec)))
