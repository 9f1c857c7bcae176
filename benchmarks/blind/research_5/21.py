import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class PointerDecoder(nn.Module):
    """Recurrent pointer network for routing: picks ``steps`` nodes one after the other, none of them twice.

    Samples while training and decodes greedily otherwise.

    Args:
        nodes: encoded nodes ``[B, N, dim]``.
        unavailable: optional bool ``[B, N]``, True for nodes that may not be picked at all
            (padding, depots, customers that have been served already).
        steps: how many nodes to pick.
    Returns:
        tour ``[B, steps]`` and the log probability of each pick ``[B, steps]``.
    """

    def __init__(self, dim: int = 64, tanh_clip: float = 10.0):
        super().__init__()
        self.tanh_clip = tanh_clip
        self.first_input = nn.Parameter(torch.randn(dim) * 0.02)
        self.cell = nn.LSTMCell(dim, dim)
        self.glimpse_q = nn.Linear(dim, dim, bias=False)
        self.glimpse_k = nn.Linear(dim, dim, bias=False)
        self.point_q = nn.Linear(dim, dim, bias=False)
        self.point_k = nn.Linear(dim, dim, bias=False)
        self.scale = 1.0 / math.sqrt(dim)

    def _compat(self, query, keys):
        return torch.einsum("bd,bnd->bn", query, keys) * self.scale

    def forward(
        self, nodes: torch.Tensor, unavailable: Optional[torch.Tensor] = None, steps: int = 3
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        b, n, d = nodes.shape
        if unavailable is None:
            unavailable = torch.zeros(b, n, dtype=torch.bool, device=nodes.device)
        glimpse_keys = self.glimpse_k(nodes)
        point_keys = self.point_k(nodes)

        state = (nodes.mean(dim=1), nodes.new_zeros(b, d))
        step_input = self.first_input.expand(b, -1)
        tour, log_probs = [], []
        for _ in range(steps):
            state = self.cell(step_input, state)
            penalty = unavailable.to(nodes.dtype) * -1e9

            attn = (self._compat(self.glimpse_q(state[0]), glimpse_keys) + penalty).softmax(dim=-1)
            glimpse = torch.einsum("bn,bnd->bd", attn, nodes)

            logits = self.tanh_clip * torch.tanh(self._compat(self.point_q(glimpse), point_keys))
            log_p = (logits + penalty).log_softmax(dim=-1)
            if self.training:
                pick = torch.multinomial(log_p.exp(), 1)
            else:
                pick = log_p.argmax(dim=-1, keepdim=True)

            tour.append(pick)
            log_probs.append(log_p.gather(1, pick))
            unavailable.scatter_(1, pick, True)
            step_input = nodes.gather(1, pick.unsqueeze(-1).expand(-1, -1, d)).squeeze(1)

        return torch.cat(tour, dim=1), torch.cat(log_probs, dim=1)
