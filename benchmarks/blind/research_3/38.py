import torch
import torch.nn as nn


class AutoregressiveSetAttention(nn.Module):
    """Attention of the autoregressive density model p(x) = prod_t p(x_t | x_<t).

    The output at t parametrises the distribution of x_t itself, so it must not
    depend on x_t: the window is strict (keys s < t). Position 0 has no past; a
    learned start key/value, visible to everybody, gives its row something to read.
    Queries come from the positions alone, never from the content.
    """

    def __init__(self, dim: int = 32, num_heads: int = 4, max_len: int = 64):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.queries = nn.Parameter(torch.randn(1, max_len, dim) * dim ** -0.5)
        self.key_pos = nn.Parameter(torch.randn(1, max_len, dim) * dim ** -0.5)
        self.start_k = nn.Parameter(torch.randn(1, num_heads, 1, self.head_dim) * self.head_dim ** -0.5)
        self.start_v = nn.Parameter(torch.zeros(1, num_heads, 1, self.head_dim))
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.wo = nn.Linear(dim, dim)

    def _split(self, t):
        return t.view(t.size(0), t.size(1), self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x):
        B, T, D = x.shape
        q = self._split(self.wq(self.queries[:, :T]))
        k = self._split(self.wk(x + self.key_pos[:, :T]))
        v = self._split(self.wv(x))
        k = torch.cat([self.start_k.expand(B, -1, -1, -1), k], dim=2)
        v = torch.cat([self.start_v.expand(B, -1, -1, -1), v], dim=2)

        scores = torch.matmul(q, k.transpose(-1, -2)) / self.head_dim ** 0.5
        # column 0 is the start key, column s + 1 is x_s
        blocked = torch.ones(T, T + 1, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(blocked, float("-inf"))

        out = torch.matmul(scores.softmax(dim=-1), v)
        return self.wo(out.transpose(1, 2).reshape(B, T, D))
