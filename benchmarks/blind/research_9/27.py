import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Attention layer of Transformer-XL (batch first). Post-norm, as in the paper.

    w:    [B, T, D] current segment
    mems: [B, M, D] hidden states of the previous segment, or None
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0):
        super().__init__()
        self.n_head, self.d_head, self.d_model = n_head, d_head, d_model
        self.q_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.r_r_bias = nn.Parameter(torch.zeros(n_head, d_head))
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)
        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _pos(self, klen, x):
        seq = torch.arange(klen - 1, -1, -1.0, device=x.device)
        ang = torch.outer(seq, self.inv_freq)
        return torch.cat([ang.sin(), ang.cos()], dim=-1).to(x.dtype)

    @staticmethod
    def _rel_shift(x):
        b, n, q, k = x.shape
        x = F.pad(x, (1, 0))
        x = x.reshape(b, n, k + 1, q)[:, :, 1:]
        return x.reshape(b, n, q, k)

    def forward(self, w, mems=None):
        bsz, qlen, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=1)
        klen = cat.size(1)

        q = self.q_net(w).view(bsz, qlen, self.n_head, self.d_head)
        k, v = self.kv_net(cat).view(bsz, klen, 2, self.n_head, self.d_head).unbind(2)
        r = self.r_net(self._pos(klen, w)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("binh,bjnh->bnij", q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum("binh,jnh->bnij", q + self.r_r_bias, r))
        score = (AC + BD) * self.scale

        # what the shift leaves above the diagonal is rubbish; the causal mask removes it
        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        prob = self.drop(score.masked_fill(mask, float("-inf")).softmax(dim=-1))
        vec = torch.einsum("bnij,bjnh->binh", prob, v).reshape(bsz, qlen, -1)
        return self.layer_norm(w + self.drop(self.o_net(vec)))
