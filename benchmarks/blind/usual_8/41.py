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
    """Attention of Transformer-XL with relative positions and a memory, post-norm.

    Time-major: w is (qlen, batch, d_model), mems is (mlen, batch, d_model) or None.
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0, dropatt=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.pos_emb = PositionalEmbedding(d_model)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)

    def _rel_shift(self, x):
        zero_pad = x.new_zeros(x.size(0), 1, *x.size()[2:])
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz = w.size(0), w.size(1)
        cat = w if mems is None else torch.cat([mems.detach(), w], dim=0)
        klen = cat.size(0)
        mlen = klen - qlen

        # distances, from the farthest to 0
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        r = self.r_net(self.drop(self.pos_emb(pos_seq))).view(klen, self.n_head, self.d_head)

        head_q, head_k, head_v = self.qkv_net(cat).chunk(3, dim=-1)
        head_q = head_q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        head_k = head_k.view(klen, bsz, self.n_head, self.d_head)
        head_v = head_v.view(klen, bsz, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", head_q + self.r_w_bias, head_k)
        BD = self._rel_shift(torch.einsum("ibnd,jnd->ijbn", head_q + self.r_r_bias, r).contiguous())
        attn_score = (AC + BD) * self.scale

        attn_mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        attn_score = attn_score.masked_fill(attn_mask[:, :, None, None], -float("inf"))

        # (qlen, klen, batch, n_head)
        attn_prob = self.dropatt(F.softmax(attn_score, dim=1))
        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, head_v)
        attn_vec = attn_vec.reshape(qlen, bsz, self.n_head * self.d_head)

        return self.layer_norm(w + self.drop(self.o_net(attn_vec)))
