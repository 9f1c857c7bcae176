import torch
import torch.nn as nn


def precompute_freqs_cis(dim: int, end: int, theta: float = 10000.0) -> torch.Tensor:
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
    t = torch.arange(end).float()
    freqs = torch.outer(t, freqs)
    return torch.polar(torch.ones_like(freqs), freqs)


def apply_rotary_emb(x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
    # x: (b, h, d), freqs_cis: (d / 2,)
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * freqs_cis).flatten(-2).type_as(x)


class RollingCacheAttention(nn.Module):
    """Decode-time attention over a ring buffer that holds the last ``window`` tokens.

    The tokens of ``x`` are taken one after the other, the first of them at absolute position
    ``start_pos``. A new sequence begins with ``start_pos=0``.
    """

    def __init__(self, dim=64, n_heads=4, window=16, max_batch_size=8, max_seq_len=2048):
        super().__init__()
        self.n_heads = n_heads
        self.head_dim = dim // n_heads
        self.window = window
        self.scale = self.head_dim ** -0.5

        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

        cache_shape = (max_batch_size, window, n_heads, self.head_dim)
        self.register_buffer("cache_k", torch.zeros(cache_shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(cache_shape), persistent=False)
        self.register_buffer(
            "freqs_cis", precompute_freqs_cis(self.head_dim, max_seq_len), persistent=False
        )

    def _step(self, xt, pos):
        bsz = xt.shape[0]
        q = self.wq(xt).view(bsz, self.n_heads, self.head_dim)
        k = self.wk(xt).view(bsz, self.n_heads, self.head_dim)
        v = self.wv(xt).view(bsz, self.n_heads, self.head_dim)

        q = apply_rotary_emb(q, self.freqs_cis[pos])
        k = apply_rotary_emb(k, self.freqs_cis[pos])

        slot = pos % self.window
        self.cache_k[:bsz, slot] = k
        self.cache_v[:bsz, slot] = v

        keys = self.cache_k[:bsz]
        values = self.cache_v[:bsz]
        scores = torch.einsum("bhd,bshd->bhs", q, keys) * self.scale
        probs = torch.softmax(scores.float(), dim=-1).type_as(q)
        out = torch.einsum("bhs,bshd->bhd", probs, values)
        return self.wo(out.reshape(bsz, -1))

    @torch.no_grad()
    def forward(self, x, start_pos: int = 0):
        outputs = [self._step(x[:, i], start_pos + i) for i in range(x.shape[1])]
        return torch.stack(outputs, dim=1)
