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
    """
    Transformer-XL attention with relative positions and segment memory, batch first.

    w:    (batch, qlen, d_model)  hidden states of the current segment
    mems: (batch, mlen, d_model)  hidden states of the previous segment, or None

    The score of query i and key j is (q_i + r_w_bias) . k_j + (q_i + r_r_bias) . r_{i-j}, where i - j is
    the distance between the two tokens.
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.qkv_net = nn.Linear(d_model, 3 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.pos_emb = PositionalEmbedding(d_model)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (self.d_head ** 0.5)
        self.pre_lnorm = pre_lnorm

    def _rel_shift(self, x):
        b, h, q, k = x.shape
        zero_pad = x.new_zeros(b, h, q, 1)
        x_padded = torch.cat([zero_pad, x], dim=-1).view(b, h, k + 1, q)
        return x_padded[:, :, 1:].reshape(b, h, q, k)

    def forward(self, w, mems=None):
        bsz, qlen, d_model = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        klen = cat.size(1)

        heads = self.qkv_net(self.layer_norm(cat) if self.pre_lnorm else cat)
        w_q, w_k, w_v = heads.chunk(3, dim=-1)
        w_q = w_q[:, -qlen:].reshape(bsz, qlen, self.n_head, self.d_head)
        w_k = w_k.reshape(bsz, klen, self.n_head, self.d_head)
        w_v = w_v.reshape(bsz, klen, self.n_head, self.d_head)

        pos_seq = torch.arange(0, klen, device=w.device, dtype=w.dtype)
        r = self.r_net(self.pos_emb(pos_seq)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("bihd,bjhd->bhij", w_q + self.r_w_bias, w_k)
        BD = torch.einsum("bihd,jhd->bhij", w_q + self.r_r_bias, r)
        BD = self._rel_shift(BD)

        attn_score = (AC + BD) * self.scale
        future = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        attn_score = attn_score.masked_fill(future, float("-inf"))
        attn_prob = self.drop(F.softmax(attn_score, dim=-1))

        attn_vec = torch.einsum("bhij,bjhd->bihd", attn_prob, w_v).reshape(bsz, qlen, d_model)
        attn_out = self.drop(self.o_net(attn_vec))
        return w + attn_out if self.pre_lnorm else self.layer_norm(w + attn_out)
