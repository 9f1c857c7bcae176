import torch
import torch.nn as nn


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        self.demb = demb
        inv_freq = 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb))
        self.register_buffer('inv_freq', inv_freq)

    def forward(self, pos_seq):
        sinusoid_inp = torch.outer(pos_seq, self.inv_freq)
        pos_emb = torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=-1)
        return pos_emb[:, None, :]


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention. Tensors are time first: w is (qlen, bsz, d_model), mems (mlen, bsz, d_model)."""

    def __init__(self, n_head=4, d_model=64, d_head=16, dropout=0.0, dropatt=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head = n_head
        self.d_head = d_head
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.pos_emb = PositionalEmbedding(d_model)
        self.drop = nn.Dropout(dropout)
        self.dropatt = nn.Dropout(dropatt)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)
        self.pre_lnorm = pre_lnorm

    def _rel_shift(self, x):
        zero_pad = torch.zeros((x.size(0), 1, *x.size()[2:]), device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view(x.size(1) + 1, x.size(0), *x.size()[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        qlen, bsz = w.size(0), w.size(1)
        mlen = mems.size(0) if mems is not None else 0
        cat = torch.cat([mems, w], 0) if mlen > 0 else w
        klen = cat.size(0)

        pos_seq = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        r_head_k = self.r_net(self.drop(self.pos_emb(pos_seq)))

        w_heads = self.qkv_net(self.layer_norm(cat) if self.pre_lnorm else cat)
        w_head_q, w_head_k, w_head_v = torch.chunk(w_heads, 3, dim=-1)
        w_head_q = w_head_q[-qlen:]

        w_head_q = w_head_q.reshape(qlen, bsz, self.n_head, self.d_head)
        w_head_k = w_head_k.reshape(klen, bsz, self.n_head, self.d_head)
        w_head_v = w_head_v.reshape(klen, bsz, self.n_head, self.d_head)
        r_head_k = r_head_k.view(klen, self.n_head, self.d_head)

        AC = torch.einsum('ibnd,jbnd->ijbn', w_head_q + self.r_w_bias, w_head_k)
        BD = torch.einsum('ibnd,jnd->ijbn', w_head_q + self.r_r_bias, r_head_k).contiguous()
        BD = self._rel_shift(BD)

        attn_score = (AC + BD) * self.scale
        attn_mask = torch.triu(torch.ones(qlen, klen, device=w.device), diagonal=1 + mlen).bool()
        attn_score = attn_score.float().masked_fill(attn_mask[:, :, None, None], -float('inf')).type_as(attn_score)

        attn_prob = self.dropatt(torch.softmax(attn_score, dim=1))
        attn_vec = torch.einsum('ijbn,jbnd->ibnd', attn_prob, w_head_v)
        attn_vec = attn_vec.contiguous().view(qlen, bsz, self.n_head * self.d_head)
        attn_out = self.drop(self.o_net(attn_vec))
        return w + attn_out if self.pre_lnorm else self.layer_norm(w + attn_out)
