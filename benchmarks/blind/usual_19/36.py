import torch
import torch.nn as nn


class RelPartialMultiHeadAttn(nn.Module):
    """Relative attention of Transformer-XL. All tensors are time-first: (len, batch, d_model).

    `mems` holds hidden states of the previous segment; they are read, and get no gradient.
    """

    def __init__(self, d_model=64, n_head=4, dropout=0.0):
        super().__init__()
        self.n_head = n_head
        self.d_model = d_model
        self.d_head = d_model // n_head
        self.qkv_net = nn.Linear(d_model, 3 * d_model, bias=False)
        self.r_net = nn.Linear(d_model, d_model, bias=False)
        self.o_net = nn.Linear(d_model, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, self.d_head) * 0.02)
        self.layer_norm = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.scale = 1 / (self.d_head ** 0.5)
        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def pos_emb(self, klen):
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=self.inv_freq.device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        zero_pad = x.new_zeros((x.size(0), 1, *x.size()[2:]))
        padded = torch.cat([zero_pad, x], dim=1)
        padded = padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems.detach(), w], dim=0)
        klen = cat.size(0)

        q, k, v = self.qkv_net(cat).chunk(3, dim=-1)
        q = q[-qlen:].reshape(qlen, bsz, self.n_head, self.d_head)
        k = k.reshape(klen, bsz, self.n_head, self.d_head)
        v = v.reshape(klen, bsz, self.n_head, self.d_head)
        r = self.r_net(self.pos_emb(klen).to(w.dtype)).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, r).contiguous())
        score = (AC + BD) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        score = score.masked_fill(mask[:, :, None, None], float("-inf"))
        prob = self.drop(torch.softmax(score, dim=1))

        vec = torch.einsum("ijbn,jbnd->ibnd", prob, v).reshape(qlen, bsz, self.d_model)
        return self.layer_norm(w + self.drop(self.o_net(vec)))
