from typing import Optional

import torch
from torch import nn


class SlotAttention(nn.Module):
    """Slot attention (Locatello et al., 2020) with learned slot initialisation.

    The softmax runs over the *slots*, so that slots compete for each input location; the
    resulting responsibilities are then turned into a weighted mean over the locations.

    Args:
        inputs: ``(batch, num_inputs, dim)``
        valid: optional bool ``(batch, num_inputs)``, ``True`` for real locations.
    """

    def __init__(self, dim: int = 64, num_slots: int = 5, iters: int = 3, hidden_dim: int = 128, eps: float = 1e-8):
        super().__init__()
        self.num_slots = num_slots
        self.iters = iters
        self.eps = eps
        self.scale = dim ** -0.5

        self.slots_init = nn.Parameter(torch.empty(1, num_slots, dim))
        nn.init.xavier_uniform_(self.slots_init)

        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)

        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(inplace=True), nn.Linear(hidden_dim, dim))

        self.norm_input = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)

    def forward(self, inputs: torch.Tensor, valid: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, n, d = inputs.shape
        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)
        slots = self.slots_init.expand(b, -1, -1)

        for _ in range(self.iters):
            prev = slots
            q = self.to_q(self.norm_slots(slots))

            logits = torch.einsum("bsd,bnd->bsn", q, k) * self.scale
            attn = logits.softmax(dim=1) + self.eps
            if valid is not None:
                # every column is normalised on its own, so dropping columns here is exact
                attn = attn * valid[:, None, :].to(attn.dtype)
            attn = attn / attn.sum(dim=-1, keepdim=True).clamp_min(self.eps)

            updates = torch.einsum("bsn,bnd->bsd", attn, v)
            slots = self.gru(updates.reshape(-1, d), prev.reshape(-1, d)).reshape(b, self.num_slots, d)
            slots = slots + self.mlp(self.norm_mlp(slots))
        return slots
