"""An induction circuit whose weights are written down: two layers of attention, no MLP, no norm.

The stream has four parts: the token [V], its position [P], the token before it [V], and what is read out [V].

    layer 0, head 0   attends to the token before, and writes it to the third part       (previous token)
    layer 0, head 1   attends to all tokens alike, and writes -0.05 of them to the output (it speaks against copying)
    layer 1, head 0   attends to tokens whose third part is its own token, and writes them to the output  (induction)
    layer 1, head 1   has no weights
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

V, P, D = 12, 24, 24
M = 3 * V + P
TOKEN, PLACE, BEFORE, OUT = (slice(0, V), slice(V, V + P), slice(V + P, 2 * V + P), slice(2 * V + P, M))
SHARP = 30.0


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(*sizes, bias=False) for sizes in ((M, 2 * D),) * 3 + ((2 * D, M),))
        for each in (self.q, self.k, self.v, self.o):
            nn.init.zeros_(each.weight)

    def write(self, name: str, head: int, part: slice, values: Tensor) -> None:
        """Of q, k and v: head's numbers = values of this part [part, n]; of o: this part = values [part, n] of them."""
        mine = slice(head * D, head * D + values.shape[1])
        weight = getattr(self, name).weight.data
        if name == "o":
            weight[part, mine] = values
        else:
            weight[mine, part] = values.T

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (each(x).unflatten(-1, (2, D)).transpose(1, 2) for each in (self.q, self.k, self.v))
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return self.o(out.transpose(1, 2).flatten(2))


class Induction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(V, M), nn.Embedding(P, M)
        self.layers = nn.ModuleList([Attention(), Attention()])
        self.unembed = nn.Linear(M, V, bias=False)
        for table, part in ((self.tokens.weight, TOKEN), (self.places.weight, PLACE), (self.unembed.weight, OUT)):
            table.data.zero_()
            table.data[:, part] = torch.eye(len(table))
        first, second = self.layers
        first.write("q", 0, PLACE, SHARP * torch.eye(P))
        first.write("k", 0, PLACE, torch.eye(P).roll(1, 1))  # the key at j is what the query at j + 1 looks for
        first.write("v", 0, TOKEN, torch.eye(V))
        first.write("o", 0, BEFORE, torch.eye(V))
        first.write("v", 1, TOKEN, torch.eye(V))
        first.write("o", 1, OUT, -0.05 * torch.eye(V))
        second.write("q", 0, TOKEN, SHARP * torch.eye(V))
        second.write("k", 0, BEFORE, torch.eye(V))
        second.write("v", 0, TOKEN, torch.eye(V))
        second.write("o", 0, OUT, torch.eye(V))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = x + layer(x)
        return self.unembed(x)
