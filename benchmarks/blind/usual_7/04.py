import torch
import torch.nn as nn


class SlotAttention(nn.Module):
    """
    Slot Attention (Locatello et al., 2020) with learned initial slots.

    Slots compete for the inputs: the softmax runs over the slots, afterwards each slot's weights are
    normalised over the inputs to form a weighted mean.

    inputs: (batch, num_inputs, dim)  ->  slots (batch, num_slots, dim), attn (batch, num_slots, num_inputs)
    """

    def __init__(self, dim: int = 64, num_slots: int = 5, iters: int = 3, hidden_dim: int = 128, eps: float = 1e-8):
        super().__init__()
        self.num_slots = num_slots
        self.iters = iters
        self.eps = eps
        self.scale = dim ** -0.5

        self.slots_init = nn.Parameter(torch.randn(1, num_slots, dim) * dim ** -0.5)

        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)

        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, dim))

        self.norm_input = nn.LayerNorm(dim)
        self.norm_slots = nn.LayerNorm(dim)
        self.norm_mlp = nn.LayerNorm(dim)

    def forward(self, inputs):
        b, n, d = inputs.shape
        slots = self.slots_init.expand(b, -1, -1)

        inputs = self.norm_input(inputs)
        k, v = self.to_k(inputs), self.to_v(inputs)

        attn = None
        for _ in range(self.iters):
            prev = slots
            q = self.to_q(self.norm_slots(slots))

            dots = torch.einsum("bid,bjd->bij", q, k) * self.scale
            attn = dots.softmax(dim=1) + self.eps
            attn = attn / attn.sum(dim=-1, keepdim=True)

            updates = torch.einsum("bij,bjd->bid", attn, v)
            slots = self.gru(updates.reshape(-1, d), prev.reshape(-1, d)).reshape(b, -1, d)
            slots = slots + self.mlp(self.norm_mlp(slots))

        return slots, attn
