import torch
import torch.nn as nn


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention, sequence-first.

    w:    (qlen, bsz, d_model)
    mems: (mlen, bsz, d_model) or None, hidden states of the previous segment
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.d_model = d_model
        self.qkv_net = nn.Linear(d_model, 3 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.scale = self.d_head ** -0.5
        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq)
        nn.init.normal_(self.r_w_bias, std=0.02)
        nn.init.normal_(self.r_r_bias, std=0.02)

    def _pos_emb(self, klen, device):
        pos_seq = torch.arange(0, klen, 1.0, device=device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    def _rel_shift(self, x):
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        klen = cat.size(0)
        q, k, v = self.qkv_net(cat).chunk(3, dim=-1)
        q = q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        k = k.view(klen, bsz, self.n_head, self.d_head)
        v = v.view(klen, bsz, self.n_head, self.d_head)
        r = self.r_net(self._pos_emb(klen, w.device)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, r))
        score = (AC + BD) * self.scale

        mask = torch.triu(torch.ones(qlen, klen, device=w.device), diagonal=1 + klen - qlen).bool()
        score = score.masked_fill(mask[:, :, None, None], float("-inf"))
        prob = self.drop(torch.softmax(score, dim=1))

        vec = torch.einsum("ijbn,jbnd->ibnd", prob, v).reshape(qlen, bsz, self.d_model)
        return self.layer_norm(w + self.drop(self.o_net(vec)))
