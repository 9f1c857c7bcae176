import torch
import torch.nn as nn


def quiet_softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """exp(x_i) / (1 + sum_j exp(x_j)): a head may attend to nothing.

    Same as a softmax with one more logit fixed at zero, so the shift has to be
    at least 0 and the shifted zero logit stays in the denominator.
    """
    shift = x.amax(dim=dim, keepdim=True).clamp(min=0.0).detach()
    e = torch.exp(x - shift)
    return e / (torch.exp(-shift) + e.sum(dim=dim, keepdim=True))


class QuietAttention(nn.Module):
    def __init__(self, n_embd: int = 64, n_head: int = 4, causal: bool = True, bias: bool = True):
        super().__init__()
        assert n_embd % n_head == 0
        self.n_head = n_head
        self.causal = causal
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=bias)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=bias)

    def forward(self, x: torch.Tensor, pad: torch.Tensor = None) -> torch.Tensor:
        """pad: bool (B, T), True at padding. Rows with no key left get zeros."""
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)

        att = (q @ k.transpose(-2, -1)) * (C // self.n_head) ** -0.5
        if self.causal:
            future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
            att = att.masked_fill(future, float("-inf"))
        if pad is not None:
            att = att.masked_fill(pad[:, None, None, :], float("-inf"))
        att = quiet_softmax(att)

        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)
