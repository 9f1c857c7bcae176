"""The encoder block of the 2017 paper, with the norm after the sum."""
import torch
import torch.nn as nn


class PostNormBlock(nn.Module):
    """x: (seq_len, batch, d_model); lengths: (batch,), number of real positions."""

    def __init__(self, d_model=64, num_heads=4, d_ff=256, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Parameter(torch.empty(3, d_model, d_model))
        for i in range(3):
            nn.init.xavier_uniform_(self.qkv.data[i])
        self.o = nn.Linear(d_model, d_model, bias=False)
        self.up = nn.Linear(d_model, d_ff)
        self.down = nn.Linear(d_ff, d_model)
        self.ln_a = nn.LayerNorm(d_model)
        self.ln_b = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def attention(self, x, lengths):
        s, b, e = x.shape
        d = e // self.num_heads
        q, k, v = torch.einsum("sbe,kef->ksbf", x, self.qkv)
        # heads fold into the batch axis: index b * num_heads + h
        q, k, v = (z.reshape(s, b * self.num_heads, d).transpose(0, 1) for z in (q, k, v))
        logits = torch.bmm(q, k.transpose(1, 2)).div_(d ** 0.5)
        if lengths is not None:
            pad = torch.arange(s, device=x.device)[None, :] >= lengths[:, None]
            pad = pad.repeat_interleave(self.num_heads, dim=0)
            logits = logits.masked_fill(pad.unsqueeze(1), float("-inf"))
        ctx = torch.bmm(self.drop(logits.softmax(-1)), v)
        return self.o(ctx.transpose(0, 1).reshape(s, b, e))

    def forward(self, x, lengths=None):
        x = self.ln_a(x + self.drop(self.attention(x, lengths)))
        x = self.ln_b(x + self.drop(self.down(torch.relu(self.up(x)))))
        return x
