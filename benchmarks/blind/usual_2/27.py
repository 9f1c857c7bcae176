import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb)))

    def forward(self, pos_seq):
        sinusoid_inp = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=-1)


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention, (length, batch, d_model) layout.

    w:    the current segment (qlen, bsz, d_model)
    mems: hidden states of the segment before it (mlen, bsz, d_model); no gradient flows into them
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.1, dropatt=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_head = d_head
        self.q_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.pos_emb = PositionalEmbedding(d_model)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        nn.init.normal_(self.r_w_bias, std=0.02)
        nn.init.normal_(self.r_r_bias, std=0.02)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)

    @staticmethod
    def _rel_shift(x):
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.reshape(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].reshape(x.shape)

    def forward(self, w, mems=None):
        cat = w if mems is None else torch.cat([mems.detach(), w], 0)
        qlen, bsz, klen = w.size(0), w.size(1), cat.size(0)

        # column j of r stands for the distance klen - 1 - j
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        r = self.drop(self.pos_emb(pos_seq))

        w_head_q = self.q_net(w).view(qlen, bsz, self.n_head, self.d_head)
        w_head_k, w_head_v = torch.chunk(self.kv_net(cat), 2, dim=-1)
        w_head_k = w_head_k.reshape(klen, bsz, self.n_head, self.d_head)
        w_head_v = w_head_v.reshape(klen, bsz, self.n_head, self.d_head)
        r_head_k = self.r_net(r).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", w_head_q + self.r_w_bias, w_head_k)
        BD = torch.einsum("ibnd,jnd->ijbn", w_head_q + self.r_r_bias, r_head_k)
        BD = self._rel_shift(BD)

        attn_score = (AC + BD) * self.scale
        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        attn_score = attn_score.masked_fill(mask[:, :, None, None], float("-inf"))

        attn_prob = self.dropatt(F.softmax(attn_score, dim=1))
        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_head_v)
        attn_vec = attn_vec.contiguous().view(qlen, bsz, self.n_head * self.d_head)

        attn_out = self.drop(self.o_net(attn_vec))
        return self.layer_norm(w + attn_out)
