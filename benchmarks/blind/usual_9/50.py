import math

import torch
import torch.nn.functional as F
from torch import nn


def layer_norm(x, params, prefix):
    return F.layer_norm(x, (x.shape[-1],), params[prefix + "_g"], params[prefix + "_b"])


def rotate_every_two(x):
    x1 = x[..., ::2]
    x2 = x[..., 1::2]
    return torch.stack((-x2, x1), dim=-1).flatten(-2)


def partial_rotary(x, rotary_dim):
    """Rotates neighbouring pairs of the first rotary_dim features, the others pass through.

    x: (batch, heads, length, head_dim)
    """
    n = x.shape[2]
    inv_freq = 1.0 / (10000 ** (torch.arange(0, rotary_dim, 2, device=x.device).float() / rotary_dim))
    angles = torch.outer(torch.arange(n, device=x.device).float(), inv_freq).repeat_interleave(2, dim=-1)
    rot, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    rot = rot * angles.cos().to(x.dtype) + rotate_every_two(rot) * angles.sin().to(x.dtype)
    return torch.cat((rot, rest), dim=-1)


def attention(x, params, n_head, rotary_dim):
    b, n, c = x.shape
    q, k, v = (
        F.linear(x, params[name]).view(b, n, n_head, c // n_head).transpose(1, 2) for name in ("w_q", "w_k", "w_v")
    )
    q, k = partial_rotary(q, rotary_dim), partial_rotary(k, rotary_dim)
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) / math.sqrt(c // n_head)
    future = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
    probs = scores.masked_fill(future, float("-inf")).softmax(dim=-1).to(v.dtype)
    y = torch.matmul(probs, v).transpose(1, 2).reshape(b, n, c)
    return F.linear(y, params["w_o"])


def feed_forward(x, params):
    hidden = F.gelu(F.linear(x, params["w_in"], params["b_in"]), approximate="tanh")
    return F.linear(hidden, params["w_out"], params["b_out"])


class ParallelBlock(nn.Module):
    """GPT-J block: attention and feed-forward read the same normalised input and are added to the residual
    stream together. There is one layer norm only, and the attention projections have no biases."""

    def __init__(self, n_embd=256, n_head=4, rotary_dim=32):
        super().__init__()
        self.n_head = n_head
        self.rotary_dim = rotary_dim

        def weight(rows, cols):
            return nn.Parameter(torch.randn(rows, cols) * cols ** -0.5)

        self.params = nn.ParameterDict(
            {
                "ln_g": nn.Parameter(torch.ones(n_embd)),
                "ln_b": nn.Parameter(torch.zeros(n_embd)),
                "w_q": weight(n_embd, n_embd),
                "w_k": weight(n_embd, n_embd),
                "w_v": weight(n_embd, n_embd),
                "w_o": weight(n_embd, n_embd),
                "w_in": weight(4 * n_embd, n_embd),
                "b_in": nn.Parameter(torch.zeros(4 * n_embd)),
                "w_out": weight(n_embd, 4 * n_embd),
                "b_out": nn.Parameter(torch.zeros(n_embd)),
            }
        )

    def forward(self, x):
        h = layer_norm(x, self.params, "ln")
        return x + attention(h, self.params, self.n_head, self.rotary_dim) + feed_forward(h, self.params)
