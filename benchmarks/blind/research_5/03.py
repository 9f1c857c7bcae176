import torch
import torch.nn as nn


class SinusoidTable(nn.Module):
    def __init__(self, demb):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, pos_seq):
        angles = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([angles.sin(), angles.cos()], dim=-1)


class RelPartialLearnableAttention(nn.Module):
    """Segment-recurrent attention with relative positions (Transformer-XL, appendix B).

    Time first: ``w`` is ``[qlen, bsz, d_model]`` and ``mems`` is ``[mlen, bsz, d_model]``.
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * self.d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * self.d_head, bias=False)
        self.o_net = nn.Linear(n_head * self.d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.pos_emb = SinusoidTable(d_model)
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.scale = self.d_head ** -0.5
        self.pre_lnorm = pre_lnorm

    @staticmethod
    def _rel_shift(x):
        qlen, klen = x.size(0), x.size(1)
        zero_pad = x.new_zeros(qlen, 1, *x.size()[2:])
        x = torch.cat([zero_pad, x], dim=1)
        x = x.view(klen + 1, qlen, *x.size()[2:])
        return x[1:].view(qlen, klen, *x.size()[2:])

    def forward(self, w, mems=None):
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        klen = cat.size(0)
        mlen = klen - qlen

        heads = self.qkv_net(self.layer_norm(cat) if self.pre_lnorm else cat)
        q, k, v = heads.chunk(3, dim=-1)
        q = q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        k = k.view(klen, bsz, self.n_head, self.d_head)
        v = v.view(klen, bsz, self.n_head, self.d_head)

        pos_seq = torch.arange(klen, device=w.device, dtype=w.dtype)
        r = self.r_net(self.pos_emb(pos_seq)).view(klen, self.n_head, self.d_head)

        ac = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        bd = torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, r)
        score = (ac + self._rel_shift(bd)) * self.scale

        future = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        score = score.masked_fill(future[:, :, None, None], float("-inf"))
        prob = self.drop(score.softmax(dim=1))

        vec = torch.einsum("ijbn,jbnd->ibnd", prob, v).reshape(qlen, bsz, -1)
        out = w + self.drop(self.o_net(vec))
        return out if self.pre_lnorm else self.layer_norm(out)
