import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    """
    Masked multi-head self attention.

    x:    (batch, time, emb)
    mask: optional (batch, time) tensor with ones for tokens and zeros for padding
    """

    def __init__(self, emb=64, heads=4, causal=False):
        super().__init__()
        assert emb % heads == 0, f"Embedding dimension ({emb}) should be divisible by nr. of heads ({heads})"
        self.emb = emb
        self.heads = heads
        self.causal = causal
        self.tokeys = nn.Linear(emb, emb, bias=False)
        self.toqueries = nn.Linear(emb, emb, bias=False)
        self.tovalues = nn.Linear(emb, emb, bias=False)
        self.unifyheads = nn.Linear(emb, emb)

    def forward(self, x, mask=None):
        b, t, e = x.size()
        h = self.heads
        s = e // h

        keys = self.tokeys(x).view(b, t, h, s)
        queries = self.toqueries(x).view(b, t, h, s)
        values = self.tovalues(x).view(b, t, h, s)

        # fold heads into the batch dimension
        keys = keys.transpose(1, 2).contiguous().view(b * h, t, s)
        queries = queries.transpose(1, 2).contiguous().view(b * h, t, s)
        values = values.transpose(1, 2).contiguous().view(b * h, t, s)

        # scale both sides to save memory
        queries = queries / (s ** (1 / 4))
        keys = keys / (s ** (1 / 4))

        dot = torch.bmm(queries, keys.transpose(1, 2))
        dot = torch.softmax(dot, dim=2).view(b, h, t, t)

        if self.causal:
            dot = dot * torch.tril(torch.ones(t, t, device=x.device, dtype=dot.dtype))
        if mask is not None:
            dot = dot * mask[:, None, None, :].to(dot.dtype)

        out = torch.bmm(dot.view(b * h, t, t), values).view(b, h, t, s)
        out = out.transpose(1, 2).contiguous().view(b, t, s * h)
        return self.unifyheads(out)
