import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, pos_seq):
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)


class RelMultiHeadAttn(nn.Module):
    """Transformer-XL attention layer (post-norm), time-major.

    ``w`` is (qlen, bsz, d_model); ``mems`` is (mlen, bsz, d_model) or None.
    Softmax runs over axis 1, because scores are kept as (qlen, klen, bsz, n_head).
    """

    def __init__(self, d_model=128, n_head=4, dropout=0.0, dropatt=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * self.d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * self.d_head, bias=False)
        self.o_net = nn.Linear(n_head * self.d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        nn.init.normal_(self.r_w_bias, std=0.02)
        nn.init.normal_(self.r_r_bias, std=0.02)
        self.pos_emb = PositionalEmbedding(d_model)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (self.d_head ** 0.5)

    def _rel_shift(self, x):
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        klen = cat.size(0)
        mlen = klen - qlen

        w_heads = self.qkv_net(cat)
        w_head_q, w_head_k, w_head_v = torch.chunk(w_heads, 3, dim=-1)
        w_head_q = w_head_q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        w_head_k = w_head_k.view(klen, bsz, self.n_head, self.d_head)
        w_head_v = w_head_v.view(klen, bsz, self.n_head, self.d_head)

        pos_seq = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        r_head_k = self.r_net(self.drop(self.pos_emb(pos_seq)))
        r_head_k = r_head_k.view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", w_head_q + self.r_w_bias, w_head_k)
        BD = torch.einsum("ibnd,jnd->ijbn", w_head_q + self.r_r_bias, r_head_k)
        BD = self._rel_shift(BD)

        attn_score = (AC + BD) * self.scale
        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        attn_score = attn_score.masked_fill(mask[:, :, None, None], float("-inf"))
        attn_prob = self.dropatt(F.softmax(attn_score, dim=1))

        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_head_v)
        attn_vec = attn_vec.reshape(qlen, bsz, self.n_head * self.d_head)
        return self.layer_norm(w + self.drop(self.o_net(attn_vec)))
