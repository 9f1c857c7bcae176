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
    """Self attention of Transformer-XL with segment memory and relative positions.

    w: (batch, qlen, d_model), mems: (batch, mlen, d_model) or None
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0, dropatt=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_head = d_head
        self.pre_lnorm = pre_lnorm

        self.pos_emb = PositionalEmbedding(d_model)
        self.q_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)

        self.r_w_bias = nn.Parameter(torch.empty(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.empty(n_head, d_head))
        nn.init.normal_(self.r_w_bias, std=0.02)
        nn.init.normal_(self.r_r_bias, std=0.02)

        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)

    @staticmethod
    def _rel_shift(x):
        bsz, n_head, qlen, klen = x.shape
        x = F.pad(x, (1, 0)).reshape(bsz, n_head, klen + 1, qlen)
        return x[:, :, 1:].reshape(bsz, n_head, qlen, klen)

    def forward(self, w, mems=None):
        bsz, qlen, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        klen = cat.size(1)
        mlen = klen - qlen
        if self.pre_lnorm:
            cat = self.layer_norm(cat)

        w_head_q = self.q_net(cat[:, mlen:]).view(bsz, qlen, self.n_head, self.d_head)
        w_head_k, w_head_v = self.kv_net(cat).view(bsz, klen, 2, self.n_head, self.d_head).unbind(2)

        pos_seq = torch.arange(klen, device=w.device, dtype=w.dtype)
        r = self.drop(self.pos_emb(pos_seq))
        r_head_k = self.r_net(r).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("bind,bjnd->bnij", w_head_q + self.r_w_bias, w_head_k)
        BD = torch.einsum("bind,jnd->bnij", w_head_q + self.r_r_bias, r_head_k)
        BD = self._rel_shift(BD)

        attn_score = (AC + BD) * self.scale
        attn_mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        attn_score = attn_score.masked_fill(attn_mask, float("-inf"))
        attn_prob = self.dropatt(F.softmax(attn_score, dim=-1))

        attn_vec = torch.einsum("bnij,bjnd->bind", attn_prob, w_head_v).reshape(bsz, qlen, -1)
        attn_out = self.drop(self.o_net(attn_vec))
        if self.pre_lnorm:
            return w + attn_out
        return self.layer_norm(w + attn_out)
