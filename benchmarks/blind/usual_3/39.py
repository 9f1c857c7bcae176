import torch
import torch.nn as nn


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Self attention of Transformer-XL with relative positions and a memory.

    w:    (qlen, bsz, d_model) hidden states of the current segment
    mems: (mlen, bsz, d_model) hidden states of earlier segments, or None

    The score of query i and key j is (q_i + u) k_j + (q_i + v) r_{i-j}, where r_{i-j} is the
    projected sinusoidal embedding of the distance between the two.
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_head
        self.pre_lnorm = pre_lnorm
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.scale = 1 / (d_head ** 0.5)
        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq)

    def _rel_shift(self, x):
        qlen, klen = x.size(0), x.size(1)
        zero_pad = torch.zeros((qlen, 1) + tuple(x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view((klen + 1, qlen) + tuple(x.size()[2:]))
        return x_padded[1:].view_as(x)

    def pos_emb(self, klen, device):
        pos_seq = torch.arange(0, klen, 1.0, device=device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    def forward(self, w, mems=None):
        qlen, bsz = w.size(0), w.size(1)
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        klen = cat.size(0)

        w_heads = self.qkv_net(self.layer_norm(cat) if self.pre_lnorm else cat)
        w_head_q, w_head_k, w_head_v = torch.chunk(w_heads, 3, dim=-1)
        w_head_q = w_head_q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        w_head_k = w_head_k.view(klen, bsz, self.n_head, self.d_head)
        w_head_v = w_head_v.view(klen, bsz, self.n_head, self.d_head)
        r_head_k = self.r_net(self.pos_emb(klen, w.device)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum('ibnd,jbnd->ijbn', w_head_q + self.r_w_bias, w_head_k)
        BD = torch.einsum('ibnd,jnd->ijbn', w_head_q + self.r_r_bias, r_head_k)
        BD = self._rel_shift(BD)
        attn_score = (AC + BD) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        attn_score = attn_score.masked_fill(mask[:, :, None, None], float('-inf'))

        attn_prob = self.drop(torch.softmax(attn_score, dim=1))
        attn_vec = torch.einsum('ijbn,jbnd->ibnd', attn_prob, w_head_v)
        attn_out = self.o_net(attn_vec.reshape(qlen, bsz, self.n_head * self.d_head))

        if self.pre_lnorm:
            return w + attn_out
        return self.layer_norm(w + attn_out)
