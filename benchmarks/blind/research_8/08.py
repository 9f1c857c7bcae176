import torch
import torch.nn as nn


class RelPartialAttention(nn.Module):
    """Transformer-XL attention with segment memory (Dai et al., 2019).

    h: [B, Q, D] current segment, mems: [B, M, D] hidden states of the previous segment (already detached).
    Distances run from M + Q - 1 (left) down to 0 (right) in the position matrix.
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.scale = 1 / (self.d_head ** 0.5)
        self.q_net = nn.Linear(d_model, d_model, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.pre_lnorm = pre_lnorm
        inv = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv, persistent=False)

    def _positions(self, klen, like):
        pos = torch.arange(klen - 1, -1, -1.0, device=like.device)
        ang = torch.outer(pos, self.inv_freq)
        return torch.cat([ang.sin(), ang.cos()], dim=-1).to(like.dtype)

    @staticmethod
    def _rel_shift(x):
        b, n, q, k = x.shape
        pad = x.new_zeros(b, n, q, 1)
        x = torch.cat([pad, x], dim=-1).view(b, n, k + 1, q)
        return x[:, :, 1:].reshape(b, n, q, k)

    def forward(self, h, mems=None):
        bsz, qlen, d = h.shape
        cat = h if mems is None else torch.cat([mems, h], dim=1)
        klen = cat.size(1)
        src, tgt = (self.layer_norm(cat), self.layer_norm(h)) if self.pre_lnorm else (cat, h)

        q = self.q_net(tgt).view(bsz, qlen, self.n_head, self.d_head)
        k, v = self.kv_net(src).view(bsz, klen, 2, self.n_head, self.d_head).unbind(2)
        r = self.r_net(self._positions(klen, h)).view(klen, self.n_head, self.d_head)

        ac = torch.einsum("bind,bjnd->bnij", q + self.r_w_bias, k)
        bd = self._rel_shift(torch.einsum("bind,jnd->bnij", q + self.r_r_bias, r))
        score = (ac + bd) * self.scale

        future = torch.ones(qlen, klen, dtype=torch.bool, device=h.device).triu(1 + klen - qlen)
        prob = score.masked_fill(future, float("-inf")).softmax(-1)
        vec = torch.einsum("bnij,bjnd->bind", self.drop(prob), v).reshape(bsz, qlen, d)
        out = h + self.drop(self.o_net(vec))
        return out if self.pre_lnorm else self.layer_norm(out)
