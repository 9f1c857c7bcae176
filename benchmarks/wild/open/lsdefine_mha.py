"""Heads are folded as [head, batch] but the mask is repeated as [batch, head], so examples get each other's masks.

lsdefine/attention-is-all-you-need-keras #36 (2020)
https://github.com/lsdefine/attention-is-all-you-need-keras/issues/36
"""
import torch
import torch.nn as nn


class ScaledDotProductAttention(nn.Module):
    def __init__(self, temper):
        super().__init__()
        self.temper = temper

    def forward(self, q, k, v, mask):
        """mask: (batch * n_head, len_q or 1, len_k), 1 to keep and 0 for padding"""
        attn = torch.bmm(q, k.transpose(1, 2)) / self.temper
        if mask is not None:
            attn = attn.masked_fill(mask == 0, torch.finfo(attn.dtype).min)
        attn = torch.softmax(attn, dim=-1)
        return torch.bmm(attn, v), attn


class _MultiHeadAttentionBase(nn.Module):
    # mode 0 - big matrices, faster
    def __init__(self, n_head, d_model):
        super().__init__()
        self.n_head = n_head
        self.d_k = self.d_v = d_model // n_head
        self.qs_layer = nn.Linear(d_model, n_head * self.d_k, bias=False)
        self.ks_layer = nn.Linear(d_model, n_head * self.d_k, bias=False)
        self.vs_layer = nn.Linear(d_model, n_head * self.d_v, bias=False)
        self.attention = ScaledDotProductAttention(self.d_k ** 0.5)
        self.w_o = nn.Linear(n_head * self.d_v, d_model)

    def reshape1(self, x):
        s = x.shape  # [batch_size, len_q, n_head * d_k]
        x = x.reshape(s[0], s[1], self.n_head, s[2] // self.n_head)
        x = x.permute(2, 0, 1, 3)
        return x.reshape(-1, s[1], s[2] // self.n_head)  # [n_head * batch_size, len_q, d_k]

    def reshape2(self, x):
        s = x.shape  # [n_head * batch_size, len_v, d_v]
        x = x.reshape(self.n_head, -1, s[1], s[2])
        x = x.permute(1, 2, 0, 3)
        return x.reshape(-1, s[1], self.n_head * s[2])  # [batch_size, len_v, n_head * d_v]


def broken() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        """q, k, v: (batch, len, d_model); mask: (batch, 1 or len_q, len_k), 1 for real tokens, 0 for padding."""

        def forward(self, q, k, v, mask=None):
            qs, ks, vs = self.reshape1(self.qs_layer(q)), self.reshape1(self.ks_layer(k)), self.reshape1(self.vs_layer(v))
            if mask is not None:
                mask = mask.repeat_interleave(self.n_head, dim=0)
            head, attn = self.attention(qs, ks, vs, mask=mask)
            return self.w_o(self.reshape2(head))

    torch.manual_seed(0)
    return MultiHeadAttention(4, 32)


def fixed() -> nn.Module:
    class MultiHeadAttention(_MultiHeadAttentionBase):
        """q, k, v: (batch, len, d_model); mask: (batch, 1 or len_q, len_k), 1 for real tokens, 0 for padding."""

        def forward(self, q, k, v, mask=None):
            qs, ks, vs = self.reshape1(self.qs_layer(q)), self.reshape1(self.ks_layer(k)), self.reshape1(self.vs_layer(v))
            if mask is not None:
                mask = mask.repeat(self.n_head, 1, 1)
            head, attn = self.attention(qs, ks, vs, mask=mask)
            return self.w_o(self.reshape2(head))

    torch.manual_seed(0)
    return MultiHeadAttention(4, 32)


def example() -> tuple[tuple, dict]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 6, 32, generator=generator)
    lengths = torch.tensor([6, 4, 2])
    mask = (torch.arange(6) < lengths[:, None]).float()[:, None]
    return (x, x, x), {"mask": mask}
