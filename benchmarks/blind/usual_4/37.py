import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPartialMultiHeadAttn(nn.Module):
    """Relative multi-head attention of Transformer-XL, layout (length, batch, d_model).

    ``mems`` holds the hidden states of the previous segment (already detached by the caller);
    they serve as additional keys and values and are visible to every query.
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.1, dropatt=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_head
        self.d_model = d_model
        self.scale = 1 / (d_head ** 0.5)

        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)

        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _positions(self, klen):
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=self.inv_freq.device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        # (qlen, klen, bsz, n_head)
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        klen = cat.size(0)
        mlen = klen - qlen

        w_head_q, w_head_k, w_head_v = self.qkv_net(cat).chunk(3, dim=-1)
        w_head_q = w_head_q[-qlen:].reshape(qlen, bsz, self.n_head, self.d_head)
        w_head_k = w_head_k.reshape(klen, bsz, self.n_head, self.d_head)
        w_head_v = w_head_v.reshape(klen, bsz, self.n_head, self.d_head)
        r_head_k = self.r_net(self._positions(klen).to(w.dtype)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", w_head_q + self.r_w_bias, w_head_k)
        BD = torch.einsum("ibnd,jnd->ijbn", w_head_q + self.r_r_bias, r_head_k).contiguous()
        BD = self._rel_shift(BD)
        attn_score = (AC + BD) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + mlen)
        attn_score = attn_score.masked_fill(mask[:, :, None, None], float("-inf"))
        attn_prob = self.dropatt(F.softmax(attn_score, dim=1))

        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_head_v)
        attn_vec = attn_vec.reshape(qlen, bsz, self.n_head * self.d_head)
        return self.layer_norm(w + self.drop(self.o_net(attn_vec)))
