import torch
import torch.nn as nn
import torch.nn.functional as F

SELF_LOGIT = -5e4


class SharedQKAttention(nn.Module):
    """Full (unhashed) shared-QK attention of the Reformer, causal.

    Queries and keys come from one projection; keys are the queries scaled to unit length. As a vector is
    always closest to itself, a position does not attend to itself unless it has nothing else to attend
    to, which is the case for the first token only.
    """

    def __init__(self, dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.head_dim = dim // heads
        self.toqk = nn.Linear(dim, dim, bias=False)
        self.tov = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        qk = self.toqk(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        v = self.tov(x).view(b, t, self.heads, self.head_dim).transpose(1, 2)
        k = F.normalize(qk, dim=-1)

        dots = torch.einsum("bhie,bhje->bhij", qk.float(), k.float()) * self.head_dim ** -0.5

        i = torch.arange(t, device=x.device)
        dots = dots.masked_fill(i[:, None] == i[None, :], SELF_LOGIT)
        dots = dots.masked_fill(i[:, None] < i[None, :], float("-inf"))

        attn = dots.softmax(dim=-1).to(v.dtype)
        out = torch.einsum("bhij,bhje->bhie", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, t, d))
