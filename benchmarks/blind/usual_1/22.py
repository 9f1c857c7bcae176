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
    """Transformer-XL attention with segment-level recurrence (Dai et al. 2019).

    score(i, j) = (q_i + u)^T k_j + (q_i + v)^T W_r R_{i-j}
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0, dropatt=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_head = d_model // n_head
        self.pre_lnorm = pre_lnorm
        self.scale = 1 / (self.d_head ** 0.5)

        self.pos_emb = PositionalEmbedding(d_model)
        self.q_net = nn.Linear(d_model, d_model, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.empty(n_head, self.d_head).normal_(std=0.02))
        self.r_r_bias = nn.Parameter(torch.empty(n_head, self.d_head).normal_(std=0.02))
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)

    def _rel_shift(self, x):
        bsz, n_head, qlen, klen = x.size()
        zero_pad = x.new_zeros(bsz, n_head, qlen, 1)
        x_padded = torch.cat([zero_pad, x], dim=-1)
        x_padded = x_padded.view(bsz, n_head, klen + 1, qlen)
        return x_padded[:, :, 1:].reshape(bsz, n_head, qlen, klen)

    def forward(self, w, mems=None):
        """w: (bsz, qlen, d_model), mems: hidden states of the previous segment (bsz, mlen, d_model)."""
        bsz, qlen, _ = w.size()
        cat = w if mems is None else torch.cat([mems.detach(), w], dim=1)
        klen = cat.size(1)
        mlen = klen - qlen

        h = self.layer_norm(cat) if self.pre_lnorm else cat
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        r = self.r_net(self.pos_emb(pos_seq)).view(klen, self.n_head, self.d_head)

        q = self.q_net(h[:, mlen:]).view(bsz, qlen, self.n_head, self.d_head)
        k, v = self.kv_net(h).chunk(2, dim=-1)
        k = k.reshape(bsz, klen, self.n_head, self.d_head)
        v = v.reshape(bsz, klen, self.n_head, self.d_head)

        AC = torch.einsum("bind,bjnd->bnij", q + self.r_w_bias, k)
        BD = torch.einsum("bind,jnd->bnij", q + self.r_r_bias, r)
        attn_score = self._rel_shift(AC + BD) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        attn_score = attn_score.masked_fill(mask, float("-inf"))
        attn_prob = self.dropatt(F.softmax(attn_score, dim=-1))

        attn_vec = torch.einsum("bnij,bjnd->bind", attn_prob, v).reshape(bsz, qlen, self.d_model)
        attn_out = self.drop(self.o_net(attn_vec))
        if self.pre_lnorm:
            return w + attn_out
        return self.layer_norm(w + attn_out)
