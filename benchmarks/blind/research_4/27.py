import torch
import torch.nn as nn


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        self.register_buffer("inv_freq", 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb)))

    def forward(self, pos_seq):
        sinusoid = torch.outer(pos_seq, self.inv_freq)
        return torch.cat([sinusoid.sin(), sinusoid.cos()], dim=-1)


class RelPartialLearnableAttention(nn.Module):
    """Relative attention of Transformer-XL, time first, with its memory.

    Args:
        n_head, d_model, d_head: sizes.
        mem_len: states which are carried to the next segment.
    """

    def __init__(self, n_head=4, d_model=128, d_head=32, mem_len=16, dropout=0.1):
        super().__init__()
        self.n_head, self.d_head, self.mem_len = n_head, d_head, mem_len
        self.qkv_net = nn.Linear(d_model, 3 * n_head * d_head, bias=False)
        self.r_net = nn.Linear(d_model, n_head * d_head, bias=False)
        self.o_net = nn.Linear(n_head * d_head, d_model, bias=False)
        self.pos_emb = PositionalEmbedding(d_model)
        self.r_w_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.r_r_bias = nn.Parameter(torch.randn(n_head, d_head) * 0.02)
        self.drop = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model)
        self.scale = 1 / (d_head**0.5)

    @staticmethod
    def _rel_shift(x):
        zero_pad = torch.zeros((x.size(0), 1) + x.shape[2:], device=x.device, dtype=x.dtype)
        x_padded = torch.cat([zero_pad, x], dim=1)
        x_padded = x_padded.view((x.size(1) + 1, x.size(0)) + x.shape[2:])
        return x_padded[1:].view_as(x)

    def forward(self, w, mems=None):
        """w: [qlen, B, d_model]; mems: [mlen, B, d_model] or None. Returns the output and the new memory."""
        qlen, bsz = w.size(0), w.size(1)
        cat = w if mems is None else torch.cat([mems, w], dim=0)
        klen = cat.size(0)

        w_head_q, w_head_k, w_head_v = self.qkv_net(cat).chunk(3, dim=-1)
        q = w_head_q[-qlen:].view(qlen, bsz, self.n_head, self.d_head)
        k = w_head_k.view(klen, bsz, self.n_head, self.d_head)
        v = w_head_v.view(klen, bsz, self.n_head, self.d_head)

        pos_seq = torch.arange(klen - 1, -1, -1.0, device=w.device, dtype=w.dtype)
        r = self.r_net(self.drop(self.pos_emb(pos_seq))).view(klen, self.n_head, self.d_head)

        AC = torch.einsum("ibnd,jbnd->ijbn", q + self.r_w_bias, k)
        BD = self._rel_shift(torch.einsum("ibnd,jnd->ijbn", q + self.r_r_bias, r))
        attn_score = (AC + BD) * self.scale

        mask = torch.ones(qlen, klen, dtype=torch.bool, device=w.device).triu(1 + klen - qlen)
        attn_score = attn_score.masked_fill(mask[:, :, None, None], float("-inf"))
        attn_prob = self.drop(attn_score.softmax(dim=1))

        vec = torch.einsum("ijbn,jbnd->ibnd", attn_prob, v).reshape(qlen, bsz, -1)
        out = self.layer_norm(w + self.drop(self.o_net(vec)))
        new_mems = cat[max(0, klen - self.mem_len) :].detach()
        return out, new_mems
