import torch
import torch.nn as nn


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        inv_freq = 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb))
        self.register_buffer('inv_freq', inv_freq)

    def forward(self, pos_seq):
        sinusoid_inp = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=-1)


class RelPartialLearnableMultiHeadAttn(nn.Module):
    """Transformer-XL attention with segment memory.

    x: [bsz, qlen, d_model]; mems: [bsz, mlen, d_model] or None.
    Returns the output and the memory for the next segment (length ``mem_len``).
    """

    def __init__(self, n_head=4, d_model=64, d_head=16, mem_len=32, dropout=0.0, pre_lnorm=False):
        super().__init__()
        self.n_head, self.d_model, self.d_head = n_head, d_model, d_head
        self.mem_len = mem_len
        self.pre_lnorm = pre_lnorm

        self.q_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.kv_net = nn.Linear(d_model, 2 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.pos_emb = PositionalEmbedding(d_model)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head ** 0.5)

    @staticmethod
    def _rel_shift(x):
        b, h, q, k = x.shape
        x = torch.cat([x.new_zeros(b, h, q, 1), x], dim=-1)
        x = x.view(b, h, k + 1, q)
        return x[:, :, 1:].reshape(b, h, q, k)

    def forward(self, x, mems=None):
        bsz, qlen, _ = x.shape
        cat = x if mems is None else torch.cat([mems, x], dim=1)
        klen = cat.size(1)
        source = self.layer_norm(cat) if self.pre_lnorm else cat

        q = self.q_net(source[:, -qlen:]).view(bsz, qlen, self.n_head, self.d_head)
        k, v = self.kv_net(source).chunk(2, dim=-1)
        k = k.view(bsz, klen, self.n_head, self.d_head)
        v = v.view(bsz, klen, self.n_head, self.d_head)

        pos_seq = torch.arange(klen - 1, -1, -1.0, device=x.device, dtype=x.dtype)
        r = self.r_net(self.drop(self.pos_emb(pos_seq))).view(klen, self.n_head, self.d_head)

        AC = torch.einsum('bind,bjnd->bnij', q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum('bind,jnd->bnij', q + self.r_r_bias, r))
        score = (AC + BD) * self.scale

        attn_mask = torch.triu(x.new_ones(qlen, klen), diagonal=1).bool()
        score = score.masked_fill(attn_mask, float('-inf'))
        prob = self.drop(torch.softmax(score, dim=-1))

        vec = torch.einsum('bnij,bjnd->bind', prob, v).reshape(bsz, qlen, -1)
        out = x + self.drop(self.o_net(vec))
        if not self.pre_lnorm:
            out = self.layer_norm(out)
        return out, cat[:, -self.mem_len:].detach()
