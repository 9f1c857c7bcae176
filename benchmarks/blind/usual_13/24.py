import torch
import torch.nn as nn


class RelMultiHeadAttn(nn.Module):
    """Transformer-XL relative multi-head attention with segment memory.

    w:    (qlen, bsz, d_model)
    mems: (mlen, bsz, d_model) or None
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_head = d_head
        self.scale = d_head ** -0.5
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq)

    def _pos_emb(self, klen, device):
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        qlen, klen, bsz, n_head = x.shape
        pad = x.new_zeros(qlen, 1, bsz, n_head)
        x = torch.cat([pad, x], dim=1)
        x = x.view(klen + 1, qlen, bsz, n_head)
        return x[1:].view(qlen, klen, bsz, n_head)

    def forward(self, w, mems=None):
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        klen = cat.size(0)
        q, k, v = self.qkv_net(cat).chunk(3, dim=-1)
        q = q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        k = k.view(klen, bsz, self.n_head, self.d_head)
        v = v.view(klen, bsz, self.n_head, self.d_head)
        r = self.r_net(self._pos_emb(klen, w.device)).view(klen, self.n_head, self.d_head)

        ac = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        bd = torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, r)
        bd = self._rel_shift(bd)
        score = (ac + bd) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1)
        score = score.masked_fill(mask[:, :, None, None], float("-inf"))
        prob = self.drop(score.softmax(dim=1))

        vec = torch.einsum("ijbn,jbnd->ibnd", prob, v).reshape(qlen, bsz, -1)
        return self.layer_norm(w + self.o_net(vec))
