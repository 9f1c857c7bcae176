import torch
import torch.nn as nn


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention, batch first.

    w: (batch, qlen, d_model) current segment
    mems: (batch, mlen, d_model) hidden states of the previous segment, or None
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.scale = self.d_head**-0.5
        self.q_net = nn.Linear(d_model, d_model, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        inv_freq = 1.0 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def pos_emb(self, klen):
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=self.inv_freq.device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        b, h, q, k = x.shape
        zero_pad = x.new_zeros(b, h, q, 1)
        x_padded = torch.cat([zero_pad, x], dim=-1).view(b, h, k + 1, q)
        return x_padded[:, :, 1:].reshape(b, h, q, k)

    def forward(self, w, mems=None):
        bsz, qlen, _ = w.shape
        cat = w if mems is None else torch.cat([mems.detach(), w], dim=1)
        klen = cat.size(1)

        q = self.q_net(w).view(bsz, qlen, self.n_head, self.d_head)
        k, v = self.kv_net(cat).view(bsz, klen, 2, self.n_head, self.d_head).unbind(2)
        r = self.r_net(self.pos_emb(klen)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("bihd,bjhd->bhij", q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum("bihd,jhd->bhij", q + self.r_r_bias, r))
        score = (AC + BD) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(diagonal=1)
        score = score.masked_fill(mask, float("-inf"))
        prob = self.drop(score.softmax(dim=-1))
        out = torch.einsum("bhij,bjhd->bihd", prob, v).reshape(bsz, qlen, -1)
        return self.layer_norm(w + self.drop(self.o_net(out)))
