from typing import Optional

import torch
import torch.nn as nn


class SlotAttention(nn.Module):
    """Slot Attention (Locatello et al., 2020).

    The softmax runs over the SLOTS: slots compete for each input. The weights are normalised over the
    inputs afterwards, so that each slot takes a weighted mean of what it won.

    Args:
        num_slots: default number of slots, can be changed per call as slots are drawn from one Gaussian.
        iters: refinement iterations.
        implicit_grad: differentiate through the last iteration only, and straight-through to the initial slots.
    """

    def __init__(
        self,
        num_slots: int = 5,
        dim: int = 64,
        input_dim: Optional[int] = None,
        iters: int = 3,
        hidden_dim: int = 128,
        eps: float = 1e-8,
        implicit_grad: bool = False,
    ):
        super().__init__()
        assert iters >= 1
        input_dim = dim if input_dim is None else input_dim
        self.num_slots = num_slots
        self.iters = iters
        self.eps = eps
        self.implicit_grad = implicit_grad
        self.scale = dim ** -0.5

        self.slots_mu = nn.Parameter(torch.empty(1, 1, dim))
        self.slots_log_sigma = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.xavier_uniform_(self.slots_mu)
        nn.init.xavier_uniform_(self.slots_log_sigma)

        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(input_dim, dim, bias=False)
        self.to_v = nn.Linear(input_dim, dim, bias=False)
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(inplace=True), nn.Linear(hidden_dim, dim))

        self.norm_input = nn.LayerNorm(input_dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)

    def init_slots(self, batch: int, num_slots: int) -> torch.Tensor:
        noise = torch.randn(batch, num_slots, self.slots_mu.size(-1), device=self.slots_mu.device,
                            dtype=self.slots_mu.dtype)
        return self.slots_mu + self.slots_log_sigma.exp() * noise

    def step(self, slots: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        b, s, d = slots.shape
        q = self.to_q(self.norm_slots(slots)) * self.scale
        logits = torch.einsum("bsd,bnd->bsn", q, k)
        attn = logits.softmax(dim=1)
        weights = attn + self.eps
        weights = weights / weights.sum(dim=-1, keepdim=True)
        updates = torch.einsum("bsn,bnd->bsd", weights, v)

        slots = self.gru(updates.reshape(-1, d), slots.reshape(-1, d)).view(b, s, d)
        slots = slots + self.mlp(self.norm_mlp(slots))
        return slots, attn

    def forward(self, inputs: torch.Tensor, num_slots: Optional[int] = None,
                slots: Optional[torch.Tensor] = None):
        """
        Args:
            inputs: (batch, n, input_dim)
            slots: (batch, slots, dim) to start from, for example those of the previous video frame.

        Returns:
            slots (batch, slots, dim) and the competition map (batch, slots, n), which sums to one
            over the slots.
        """
        if slots is None:
            slots = self.init_slots(inputs.size(0), num_slots or self.num_slots)
        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)

        init, attn = slots, None
        for i in range(self.iters):
            if self.implicit_grad and i == self.iters - 1:
                # the value of the fixed point; the gradient goes straight to the initial slots (BO-QSA)
                slots = slots.detach() + init - init.detach()
            slots, attn = self.step(slots, k, v)
        return slots, attn
