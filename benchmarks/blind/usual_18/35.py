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


class RelPartialLearnableAttn(nn.Module):
    """Transformer-XL attention with segment memory.

    w:    (batch, qlen, d_model), the current segment
    mems: (batch, mlen, d_model), hidden states of the previous segment, or None
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.scale = 1 / (self.d_head ** 0.5)

        self.q_net = nn.Linear(d_model, d_model, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.pos_emb = PositionalEmbedding(d_model)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, self.d_head))
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)

    @staticmethod
    def _rel_shift(x):
        b, h, q, k = x.shape
        x = F.pad(x, (1, 0)).view(b, h, k + 1, q)
        return x[:, :, 1:].view(b, h, q, k)

    def forward(self, w, mems=None):
        b, qlen, d = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        klen = cat.size(1)

        q = self.q_net(w).view(b, qlen, self.n_head, self.d_head)
        k, v = self.kv_net(cat).chunk(2, dim=-1)
        k = k.view(b, klen, self.n_head, self.d_head)
        v = v.view(b, klen, self.n_head, self.d_head)

        pos_seq = torch.arange(klen, device=w.device, dtype=w.dtype)
        r = self.r_net(self.drop(self.pos_emb(pos_seq))).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("bind,bjnd->bnij", q + self.r_w_bias, k)
        BD = torch.einsum("bind,jnd->bnij", q + self.r_r_bias, r)
        score = (AC + self._rel_shift(BD)) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        score = score.masked_fill(mask, float("-inf"))

        prob = self.drop(F.softmax(score, dim=-1))
        vec = torch.einsum("bnij,bjnd->bind", prob, v).reshape(b, qlen, d)
        return self.layer_norm(w + self.drop(self.o_net(vec)))
