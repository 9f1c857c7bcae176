import torch
import torch.nn as nn


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention. Layout is (length, batch, d_model).

    ``mems`` holds the layer inputs of the previous segment, (mlen, batch, d_model), without gradient.
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0, dropatt=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq)

    def pos_emb(self, klen):
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=self.inv_freq.device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        # x: qlen x klen x bsz x n_head
        zero_pad = x.new_zeros((x.size(0), 1) + x.size()[2:])
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view((x.size(1) + 1, x.size(0)) + x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz = w.size(0), w.size(1)
        cat = w if mems is None else torch.cat([mems.detach(), w], dim=0)
        klen = cat.size(0)
        w_q, w_k, w_v = self.qkv_net(cat).chunk(3, dim=-1)
        w_q = w_q[-qlen:].reshape(qlen, bsz, self.n_head, self.d_head)
        w_k = w_k.reshape(klen, bsz, self.n_head, self.d_head)
        w_v = w_v.reshape(klen, bsz, self.n_head, self.d_head)
        r_k = self.r_net(self.pos_emb(klen)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", w_q + self.r_w_bias, w_k)
        BD = torch.einsum("ibnd,jnd->ijbn", w_q + self.r_r_bias, r_k)
        attn_score = (AC + self._rel_shift(BD)) * self.scale

        mask = torch.triu(w.new_ones(qlen, klen), diagonal=1 + klen - qlen).bool()
        attn_score = attn_score.masked_fill(mask[:, :, None, None], -float("inf"))

        attn_prob = self.dropatt(attn_score.softmax(dim=1))
        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_v)
        attn_out = self.drop(self.o_net(attn_vec.reshape(qlen, bsz, -1)))
        return self.layer_norm(w + attn_out)
