import torch
import torch.nn as nn
import torch.nn.functional as F


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention. Everything is (length, batch, d_model); the residual is normalised at the end."""

    def __init__(self, d_model=128, n_head=4, d_head=32, dropout=0.1, dropatt=0.0):
        super().__init__()
        self.d_model = d_model
        self.n_head = n_head
        self.d_head = d_head
        self.scale = 1 / (d_head ** 0.5)

        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)

        inv_freq = 1 / (10000 ** (torch.arange(0.0, d_model, 2.0) / d_model))
        self.register_buffer("inv_freq", inv_freq)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)

    def positional_embedding(self, klen, device):
        # distances klen - 1, ..., 1, 0
        pos_seq = torch.arange(klen - 1, -1, -1.0, device=device)
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)

    @staticmethod
    def _rel_shift(x):
        # x: (qlen, klen, bsz, n_head); row i moves left by qlen - 1 - i, what wraps around is in the future
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz, _ = w.shape
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        w_heads = self.qkv_net(cat)
        w_head_q, w_head_k, w_head_v = torch.chunk(w_heads, 3, dim=-1)
        w_head_q = w_head_q[-qlen:]
        klen = w_head_k.size(0)

        r = self.positional_embedding(klen, w.device).to(w.dtype)
        r_head_k = self.r_net(r).view(klen, self.n_head, self.d_head)

        w_head_q = w_head_q.reshape(qlen, bsz, self.n_head, self.d_head)
        w_head_k = w_head_k.reshape(klen, bsz, self.n_head, self.d_head)
        w_head_v = w_head_v.reshape(klen, bsz, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", w_head_q + self.r_w_bias, w_head_k)
        BD = torch.einsum("ibnd,jnd->ijbn", w_head_q + self.r_r_bias, r_head_k)
        BD = self._rel_shift(BD.contiguous())

        attn_score = (AC + BD) * self.scale
        future = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        attn_score = attn_score.masked_fill(future[:, :, None, None], float("-inf"))

        attn_prob = F.softmax(attn_score, dim=1)
        attn_prob = self.dropatt(attn_prob)

        attn_vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, w_head_v)
        attn_vec = attn_vec.reshape(qlen, bsz, self.n_head * self.d_head)
        attn_out = self.drop(self.o_net(attn_vec))
        return self.layer_norm(w + attn_out)
